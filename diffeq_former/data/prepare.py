"""Dataset preparation: tokenise text once and store it as sequences on disk."""

import os
from pathlib import Path

from diffeq_former.atomic_io import atomic_directory
from diffeq_former.data import dataset as datasets
from diffeq_former.data import tokenizers
from diffeq_former.data.progress import Progress
from diffeq_former.data.rows import RowWriter
from diffeq_former.data.sources import documents
from diffeq_former.data.tokenize_workers import TRAIN, VALIDATION, encode_documents
from diffeq_former.errors import UserError

DEFAULT_VALIDATION_FRACTION = 0.0005  # as is common for OpenWebText


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
    """Write the documents of a source as a dataset with train and validation splits.

    Args:
      source: The source of the documents, as in `sources.documents`.
      tokenizer: The tokenizer, as in `tokenizers.load`.
      seq_len: The number of inputs (and of targets) in a sequence.
      output: A directory that does not exist yet.
      validation_source: The source of the validation split; None: hold out a fraction
        of the documents of `source`.
      validation_fraction: The fraction of documents to hold out, chosen by a hash of
        their text.
      num_workers: The number of processes that tokenise; None: one per core; 0: this
        process only.

    Returns:
      The dataset in `output`.

    Raises:
      UserError: If the input is wrong, or the disk is full; nothing is left behind.
    """
    output = Path(output)
    if num_workers is None:
        num_workers = len(os.sched_getaffinity(0))
    _check(seq_len, validation_fraction, num_workers)
    fractions = [(source, validation_fraction)]
    if validation_source is not None:
        fractions = [(source, 0.0), (validation_source, 1.0)]
    with atomic_directory(output) as partial:
        loaded = tokenizers.load(tokenizer)
        loaded.save(partial / datasets.TOKENIZER)
        dtype = "<u2" if loaded.vocab_size <= 2**16 else "<u4"
        splits = _write_splits(partial, fractions, seq_len, dtype, num_workers)
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
    fractions: list[tuple[str, float]],
    seq_len: int,
    dtype: str,
    num_workers: int,
) -> dict[str, datasets.Split]:
    """Write both splits from pairs of a source and its fraction to hold out."""
    writers = {
        name: _SplitWriter(directory, name, seq_len, dtype)
        for name in (TRAIN, VALIDATION)
    }
    tokenizer_directory = str(directory / datasets.TOKENIZER)
    with Progress("preparing") as progress:
        for source, fraction in fractions:
            for chunk in encode_documents(
                documents(source), tokenizer_directory, fraction, num_workers
            ):
                for name, encoded in chunk.items():
                    writers[name].add(encoded)
                    progress.add(encoded.text_bytes)
    return {name: writer.close() for name, writer in writers.items()}


class _SplitWriter:
    """Writes the sequences of a split and sums up its statistics."""

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
