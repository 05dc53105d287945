"""File sources: plain text, JSON lines and Parquet; a glob, read in sorted order."""

import glob
import json
import os
from collections.abc import Iterator

from diffeq_former.data.text import chunks
from diffeq_former.errors import UserError

FIELD = "text"
ROWS_AT_ONCE = 64
LONGEST_LINE = 2**28  # characters


def text(pattern: str) -> Iterator[bytes]:
    """Yield each file in chunks of at most 64 KiB, split after line ends."""
    for path in _matching(pattern):
        with open(path, "rb") as file:
            yield from chunks(file)


def jsonl(pattern: str) -> Iterator[str]:
    """Yield the field "text" of each line's JSON object."""
    for path in _matching(pattern):
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            lines = iter(lambda: file.readline(LONGEST_LINE), "")
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _field(line, f"{path}, line {number}")


def _field(line: str, place: str) -> str:
    if len(line) == LONGEST_LINE:
        raise UserError(f"{place}: longer than {LONGEST_LINE} characters; split it")
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{place}: not JSON ({error.msg})") from error
    except (ValueError, RecursionError) as error:  # a number or nesting beyond limits
        raise UserError(f"{place}: cannot be parsed ({error})") from error
    if not isinstance(value, dict) or not isinstance(value.get(FIELD), str):
        raise UserError(f'{place}: expected an object whose "{FIELD}" is a string')
    return value[FIELD]


def parquet(pattern: str) -> Iterator[bytes]:
    """Yield the non-null values of the column "text" of each file."""
    import pyarrow
    import pyarrow.parquet

    for path in _matching(pattern):
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                _check_column(file.schema_arrow, path)
                for batch in file.iter_batches(ROWS_AT_ONCE, columns=[FIELD]):
                    column = batch.column(0).cast(pyarrow.large_binary())
                    yield from column.drop_null().to_pylist()
        except (pyarrow.ArrowException, OSError) as error:
            raise UserError(
                f"{path}: not a Parquet file, or damaged ({error}); copy it again"
            ) from error


def _check_column(schema, path: str) -> None:
    import pyarrow.types as types

    names, count = ", ".join(schema.names), schema.names.count(FIELD)
    if count != 1:
        problem = f"{count} columns" if count else "no column"
        raise UserError(f'{path}: {problem} "{FIELD}" among {names}')
    kind = schema.field(FIELD).type
    if not (types.is_string(kind) or types.is_large_string(kind)):
        raise UserError(f'{path}: column "{FIELD}" is {kind}, expected string')


def _matching(pattern: str) -> list[str]:
    found = sorted(glob.glob(pattern, recursive=True))
    paths = [path for path in found if not os.path.isdir(path)]
    if not paths:
        remedy = (
            "it matches folders; add the names of files, such as /*.txt"
            if found
            else "check the path and quote the glob"
        )
        raise UserError(f"no file matches {pattern!r}: {remedy}")
    return paths
