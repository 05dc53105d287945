"""Prepares a dataset: text is tokenised once and cut into rows on disk."""

import os
from pathlib import Path

from diffeq_former.atomic_io import complete_or_nothing
from diffeq_former.data import dataset as datasets
from diffeq_former.data import tokenizers
from diffeq_former.data.progress import Progress
from diffeq_former.data.rows import RowWriter
from diffeq_former.data.sources import documents
from diffeq_former.data.tokenize_workers import TRAIN, VALIDATION, encode_documents
from diffeq_former.errors import UserError

DEFAULT_VALIDATION_FRACTION = 0.0005  # as for OpenWebText


def prepare(
    source: str,
    tokenizer: str,
    seq_len: int,
    output: str | os.PathLike,
    *,
    validation_source: str | None = None,
    validation_fraction: float = DEFAULT_VALIDATION_FRACTION,
    num_workers: int | None = None,
) -> datasets.Dataset:
    """Writes the documents of a source as a dataset with a held-out split.

    Args:
      source: As in `sources.documents`.
      tokenizer: As in `tokenizers.load`.
      seq_len: Inputs (and targets) of a row.
      output: A directory that does not exist yet.
      validation_source: Held-out documents; else a share of the source's is held out.
      validation_fraction: The share of documents to hold out, by a hash of their text.
      num_workers: Processes that tokenise; None: one for each core; 0: this process.

    Raises:
      UserError: Wrong input, or no room on the disk; nothing is left behind.
    """
    output = Path(output)
    if num_workers is None:
        num_workers = len(os.sched_getaffinity(0))
    _check(seq_len, validation_fraction, num_workers)
    parts = [(source, validation_fraction)]
    if validation_source is not None:
        parts = [(source, 0.0), (validation_source, 1.0)]
    with complete_or_nothing(output) as partial:
        loaded = tokenizers.load(tokenizer)
        loaded.save(partial / datasets.TOKENIZER)
        dtype = "<u2" if loaded.vocab_size <= 2**16 else "<u4"
        splits = _write_splits(partial, parts, seq_len, dtype, num_workers)
        datasets.Dataset(
            path=partial,
            seq_len=seq_len,
            dtype=dtype,
            vocab_size=loaded.vocab_size,
            eot=loaded.eot,
            tokenizer_spec=tokenizer,
            tokenizer_fingerprint=loaded.fingerprint,
            source=source,
            validation_source=validation_source,
            splits=splits,
        ).write_manifest()
    return datasets.load(output)


def _check(seq_len: int, validation_fraction: float, num_workers: int) -> None:
    if seq_len < 1:
        raise UserError(f"seq_len is {seq_len}: expected 1 or more")
    if not 0 <= validation_fraction < 1:
        raise UserError(
            f"validation_fraction is {validation_fraction}: expected 0 <= fraction < 1"
        )
    if num_workers < 0:
        raise UserError(f"num_workers is {num_workers}: expected 0 or more")


def _write_splits(
    directory: Path,
    parts: list[tuple[str, float]],
    seq_len: int,
    dtype: str,
    num_workers: int,
) -> dict[str, datasets.Split]:
    sums = {
        name: _Sums(directory, name, seq_len, dtype) for name in (TRAIN, VALIDATION)
    }
    tokenizer_directory = str(directory / datasets.TOKENIZER)
    with Progress("preparing") as progress:
        for source, fraction in parts:
            for chunk in encode_documents(
                documents(source), tokenizer_directory, fraction, num_workers
            ):
                for name, encoded in chunk.items():
                    sums[name].add(encoded)
                    progress.add(encoded.text_bytes)
    return {name: split.close() for name, split in sums.items()}


class _Sums:
    """A split in the making."""

    def __init__(self, directory: Path, name: str, seq_len: int, dtype: str):
        self._name = name
        self._writer = RowWriter(directory, name, seq_len, dtype)
        self._tokens = self._text_bytes = self._documents = self._replaced = 0

    def add(self, encoded) -> None:
        self._writer.add(encoded.tokens)
        self._tokens += len(encoded.tokens)
        self._text_bytes += encoded.text_bytes
        self._documents += encoded.documents
        self._replaced += encoded.replaced

    def close(self) -> datasets.Split:
        shards = self._writer.close()
        if not shards:
            raise UserError(
                f"the {self._name} split is empty: choose another validation_fraction"
                " (more documents are held out when it is larger), or name a"
                " validation_source"
            )
        return datasets.Split(
            rows=sum(shard.rows for shard in shards),
            tokens=self._tokens,
            text_bytes=self._text_bytes,
            documents=self._documents,
            replaced=self._replaced,
            shards=shards,
        )
