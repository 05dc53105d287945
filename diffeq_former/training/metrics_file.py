"""The metrics of a run, metrics.jsonl: a JSON object with a step on every line."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from diffeq_former.atomic_io import atomic_file
from diffeq_former.errors import UserError

NAME = "metrics.jsonl"
DAMAGED = "metrics-damaged.jsonl"
# Prefixes of the metrics of hooks.
VALIDATION, ANALYSIS, HARNESS = OF_HOOKS = ("validation/", "analysis/", "harness/")
DIVERGED = "diverged"  # key of the last record of a run that diverged


def read(workdir: Path) -> list[dict]:
    """Return the lines of a run's metrics; none if it was not trained.

    A last line without an end is ignored.

    Raises:
      UserError: If the file cannot be read, or one of its lines is damaged.
    """
    path, records = workdir / NAME, []
    try:
        lines = list(_complete_lines(path))
    except FileNotFoundError:
        return []
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{path}: {reason}; is {workdir} a run?") from error
    for number, line in enumerate(lines, 1):
        record = _parse(line)
        if record is None:
            raise UserError(
                f"{path}: line {number} is damaged; remove it, or resume the run, which"
                f" moves it to {DAMAGED}"
            )
        records.append(record)
    return records


def diverged(workdir: Path) -> bool:
    """Return whether training diverged in this run and has not been resumed since."""
    records = read(workdir)
    return bool(records) and DIVERGED in records[-1]


def retain(workdir: Path, is_retained: Callable[[dict], bool]) -> int:
    """Drop records from the file, and move damaged lines to `DAMAGED`.

    Args:
      workdir: The run directory; the file need not exist.
      is_retained: Whether to retain a record.

    Returns:
      The number of damaged lines.
    """
    path = workdir / NAME
    if not path.exists():
        return 0
    retained, damaged = [], []
    for line in _complete_lines(path):
        record = _parse(line)
        if record is None:
            damaged.append(line)
        elif is_retained(record):
            retained.append(line)
    if damaged:
        with (workdir / DAMAGED).open("ab") as file:
            file.writelines(damaged)
    with atomic_file(path) as partial:
        partial.write_bytes(b"".join(retained))
    return len(damaged)


def _complete_lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from (line for line in file if line.endswith(b"\n"))


def _parse(line: bytes) -> dict | None:
    """Return the record of a line; None if the line is damaged."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_record = isinstance(record, dict) and type(record.get("step")) is int
    return record if is_record else None
