"""A prepared dataset on disk: its manifest `dataset.json`, shards and tokenizer."""

import dataclasses
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path

from diffeq_former.data import tokenizers
from diffeq_former.data.rows import REMEDY, Rows, Shard, open_shard
from diffeq_former.errors import UserError
from diffeq_former.json_io import read_object

FORMAT = 1
MANIFEST = "dataset.json"
TOKENIZER = "tokenizer"


@dataclasses.dataclass(frozen=True)
class Split:
    """The contents of a split."""

    rows: int  # sequences
    tokens: int
    text_bytes: int
    documents: int
    replaced: int  # invalid bytes that became U+FFFD
    shards: tuple[Shard, ...]


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A prepared dataset: its folder `path`, and the fields of its `dataset.json`."""

    path: Path
    seq_len: int
    dtype: str
    vocab_size: int
    eot: int
    tokenizer_spec: str
    tokenizer_fingerprint: str
    source: str
    validation_source: str | None
    splits: Mapping[str, Split]

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.path.absolute().name

    @property
    def sources(self) -> tuple["Dataset"]:
        """The dataset itself: a `mixture.Mixture` may take its place."""
        return (self,)

    @property
    def weights(self) -> tuple[float]:
        return (1.0,)

    def manifest(self) -> str:
        """Return the text of `dataset.json`."""
        return (self.path / MANIFEST).read_text(encoding="utf-8")

    def __str__(self) -> str:
        return str(self.path)

    def tokenizer(self) -> tokenizers.Tokenizer:
        """Load the dataset's tokenizer."""
        return tokenizers.load_saved(self.path / TOKENIZER)

    def split(self, name: str) -> Split:
        """Return the split of this name, or raise UserError if there is none."""
        if name not in self.splits:
            known = ", ".join(self.splits)
            raise UserError(f"dataset {self.path} has no split {name!r} among {known}")
        return self.splits[name]

    def shard_paths(self, split: str) -> list[Path]:
        return [self.path / shard.name for shard in self.split(split).shards]

    def rows(self, split: str) -> Rows:
        """Open the sequences of a split for random access."""
        counts = [shard.rows for shard in self.split(split).shards]
        return Rows(self.shard_paths(split), counts, self.seq_len, self.dtype)

    def write_manifest(self) -> None:
        """Write `dataset.json` into the dataset's folder."""
        fields = dataclasses.asdict(self)
        del fields["path"]
        for split in fields["splits"].values():
            split["shards"] = [Shard(*shard)._asdict() for shard in split["shards"]]
        text = json.dumps({"format": FORMAT, **fields}, indent=1)
        (self.path / MANIFEST).write_text(text + "\n", encoding="utf-8")


def load(path: str | os.PathLike) -> Dataset:
    """Load a prepared dataset and check its files.

    Raises:
      UserError: If it is missing or incomplete, or has files of another dataset.
    """
    dataset = _parse(Path(path))
    for split in dataset.splits.values():
        for shard in split.shards:
            _check_shard(dataset.path / shard.name, shard)
    found = dataset.tokenizer().fingerprint
    if found != dataset.tokenizer_fingerprint:
        raise UserError(
            f"{dataset.path / TOKENIZER} is not the tokenizer of this dataset"
            f" (fingerprint {found[:12]}, expected"
            f" {dataset.tokenizer_fingerprint[:12]}): prepare the dataset again"
        )
    return dataset


def _parse(path: Path) -> Dataset:
    manifest = path / MANIFEST
    if not manifest.exists():
        raise UserError(
            f"no prepared dataset at {path} ({MANIFEST} is missing): make one with"
            f" tools/prepare_data.py --source=... --tokenizer=... --output={path}"
        )
    fields = read_object(manifest)
    try:
        if fields.pop("format") != FORMAT:
            raise UserError(f"{manifest}: unknown format: prepare the dataset again")
        splits = {name: _split(split) for name, split in fields.pop("splits").items()}
        return Dataset(path=path, splits=splits, **fields)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{manifest} is damaged: {error}") from error


def _split(fields: dict) -> Split:
    shards = tuple(Shard(**shard) for shard in fields.pop("shards"))
    return Split(shards=shards, **fields)


def _check_shard(path: Path, shard: Shard) -> None:
    if not path.is_file():
        raise UserError(f"shard {path} is missing: {REMEDY}")
    size = path.stat().st_size
    if size < shard.bytes:
        raise UserError(
            f"shard {path} is truncated: {size} bytes, expected {shard.bytes}: {REMEDY}"
        )
    try:
        reader = open_shard(str(path))
        rows, first_row = reader.num_records(), reader.read()
        reader.close()
    except (RuntimeError, IndexError) as error:
        raise UserError(f"shard {path} is not an ArrayRecord file: {REMEDY}") from error
    if (size, rows, zlib.crc32(first_row)) != shard[2:0:-1] + (shard.first_row_crc32,):
        raise UserError(f"shard {path} does not belong to this dataset: {REMEDY}")
