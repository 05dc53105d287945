"""File sources: plain text, JSON lines and Parquet; a glob, read in sorted order."""

import glob
import json
from collections.abc import Iterator

from diffeq_former.data.text import chunks
from diffeq_former.errors import UserError

FIELD = "text"
ROWS_AT_ONCE = 64


def text(pattern: str) -> Iterator[bytes]:
    """Yield each file in chunks of at most 64 KiB, split after line ends."""
    for path in _matching(pattern):
        with open(path, "rb") as file:
            yield from chunks(file)


def jsonl(pattern: str) -> Iterator[str]:
    """Yield the field "text" of each line's JSON object."""
    for path in _matching(pattern):
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _field(line, f"{path}, line {number}")


def _field(line: str, place: str) -> str:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{place}: not JSON ({error.msg})") from error
    if not isinstance(value, dict) or not isinstance(value.get(FIELD), str):
        raise UserError(f'{place}: expected an object whose "{FIELD}" is a string')
    return value[FIELD]


def parquet(pattern: str) -> Iterator[bytes]:
    """Yield the non-null values of the column "text" of each file."""
    import pyarrow
    import pyarrow.parquet

    for path in _matching(pattern):
        try:
            file = pyarrow.parquet.ParquetFile(path)
        except pyarrow.ArrowInvalid as error:
            raise UserError(f"{path}: not a Parquet file") from error
        with file:
            _check_column(file.schema_arrow, path)
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=[FIELD]):
                column = batch.column(0).cast(pyarrow.large_binary())
                yield from column.drop_null().to_pylist()


def _check_column(schema, path: str) -> None:
    import pyarrow.types as types

    names = ", ".join(schema.names)
    if FIELD not in schema.names:
        raise UserError(f'{path}: no column "{FIELD}" among {names}')
    kind = schema.field(FIELD).type
    if not (types.is_string(kind) or types.is_large_string(kind)):
        raise UserError(f'{path}: column "{FIELD}" is {kind}, expected string')


def _matching(pattern: str) -> list[str]:
    paths = sorted(glob.glob(pattern, recursive=True))
    if not paths:
        raise UserError(
            f"no file matches {pattern!r}: check the path and quote the glob"
        )
    return paths
