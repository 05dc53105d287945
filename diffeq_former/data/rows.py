"""Sequences of a split on disk: split a token stream into rows, write and read them.

Row i holds the tokens [i L, i L + L] of the stream (both ends included), where L is the
sequence length: L inputs and their L targets. Neighbouring rows share one token, so
every token of the stream but the first is a target exactly once. The last row may be
shorter.
"""

import bisect
import itertools
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from diffeq_former.errors import UserError

NOTHING = -1  # padding of a short row
SHARD_BYTES = 64 * 2**20
REMEDY = "copy it again or prepare the dataset again"

# Rows are read one by one, in random order: no grouping, no read-ahead, no threads
# (with threads, reading a record takes time in proportion to the number of records).
_WRITER_OPTIONS = "group_size:1,uncompressed"
_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"


class Shard(NamedTuple):
    """An ArrayRecord file of a split, as the manifest describes it."""

    name: str
    rows: int
    bytes: int
    first_row_crc32: int


class RowWriter:
    """Splits a stream of tokens into rows, and writes them as ArrayRecord shards."""

    def __init__(self, directory: Path, split: str, seq_len: int, dtype: str):
        self._directory = directory
        self._split = split
        self._seq_len = seq_len
        self._dtype = dtype
        self._rows_per_shard = max(
            1, SHARD_BYTES // ((seq_len + 1) * np.dtype(dtype).itemsize)
        )
        self._rest = np.empty(0, dtype)
        self._shard = None
        self._shards: list[tuple[Path, int, int]] = []

    def add(self, tokens: np.ndarray) -> None:
        """Append tokens to the stream, and write the rows that are complete."""
        self._rest = np.concatenate([self._rest, tokens.astype(self._dtype)])
        length = self._seq_len
        num_rows = max(0, (len(self._rest) - 1) // length)
        for start in range(0, num_rows * length, length):
            self._write(self._rest[start : start + length + 1])
        self._rest = self._rest[num_rows * length :]

    def close(self) -> tuple[Shard, ...]:
        """Write the remaining tokens, and name the shards `SPLIT-00000-of-00003`."""
        if len(self._rest) > 1:
            self._write(self._rest)
        self._close_shard()
        count = len(self._shards)
        return tuple(
            self._named(index, count, *shard)
            for index, shard in enumerate(self._shards)
        )

    def _named(self, index: int, count: int, path: Path, rows: int, crc: int) -> Shard:
        name = f"{self._split}-{index:05}-of-{count:05}.array_record"
        path = path.rename(self._directory / name)
        return Shard(name, rows, path.stat().st_size, crc)

    def _write(self, row: np.ndarray) -> None:
        record = row.tobytes()
        if self._shard is None:
            self._open_shard(record)
        self._shard.write(record)
        self._rows += 1
        if self._rows == self._rows_per_shard:
            self._close_shard()

    def _open_shard(self, first_record: bytes) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        self._path = self._directory / f"{self._split}-{len(self._shards):05}"
        str(self._path).encode()  # raises an error if it is not valid Unicode
        self._shard = ArrayRecordWriter(str(self._path), _WRITER_OPTIONS)
        self._rows, self._crc = 0, zlib.crc32(first_record)

    def _close_shard(self) -> None:
        if self._shard is not None:
            self._shard.close()
            self._shards.append((self._path, self._rows, self._crc))
            self._shard = None


class Rows(Sequence):
    """The rows of a split: int32 [L + 1], padded with `NOTHING`.

    A shard is opened when one of its rows is first read.
    """

    def __init__(self, paths: Sequence[Path], counts: Sequence[int], seq_len, dtype):
        self._paths = [str(path) for path in paths]
        self._starts = [0, *itertools.accumulate(counts)]
        self._seq_len = seq_len
        self._dtype = dtype
        self._readers = [None] * len(self._paths)
        self._lock = threading.Lock()  # readers are stateful: seek, then read

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> np.ndarray:
        index = range(len(self))[index]
        shard = bisect.bisect_right(self._starts, index) - 1
        row = np.frombuffer(self._read(shard, index - self._starts[shard]), self._dtype)
        if len(row) == self._seq_len + 1:
            return row.astype(np.int32)
        missing = self._seq_len + 1 - len(row)
        return np.pad(row.astype(np.int32), (0, missing), constant_values=NOTHING)

    def _read(self, shard: int, position: int) -> bytes:
        try:
            with self._lock:
                if self._readers[shard] is None:
                    self._readers[shard] = open_shard(self._paths[shard])
                self._readers[shard].seek(position)
                return self._readers[shard].read()
        except (RuntimeError, IndexError) as error:
            raise UserError(
                f"shard {self._paths[shard]} is damaged (record {position} cannot be"
                f" read): {REMEDY}"
            ) from error


def open_shard(path: str):
    """Open an ArrayRecord file for random access.

    Raises:
      RuntimeError: If the file is not an ArrayRecord file.
      UnicodeEncodeError: If the path is not valid Unicode.
    """
    from array_record.python.array_record_module import ArrayRecordReader

    path.encode()  # raises an error if it is not valid Unicode
    reader = ArrayRecordReader(
        path, options=_READER_OPTIONS, file_reader_buffer_size=32768
    )
    reader.num_records()
    return reader
