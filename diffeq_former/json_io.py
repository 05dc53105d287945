"""JSON files and lines: arrays are written as lists, and non-finite numbers as null."""

import json
import math
from pathlib import Path

import numpy as np

from diffeq_former.errors import UserError


def read_object(path: Path) -> dict:
    """Read a JSON object; raise UserError if the file is missing or damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is missing or damaged: {error}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} is damaged: expected a JSON object")
    return value


def dumps(values, **options) -> str:
    """Return `values` as JSON that every parser reads; see `plain`."""
    return json.dumps(plain(values), allow_nan=False, **options)


def print_line(values: dict) -> None:
    """Print a JSON object as one line on stdout."""
    print(dumps(values), flush=True)


def plain(values):
    """Convert arrays to lists and non-finite floats to None, recursively."""
    if isinstance(values, dict):
        return {key: plain(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [plain(value) for value in values]
    if hasattr(values, "tolist"):
        return plain(np.asarray(values).tolist())
    if isinstance(values, float) and not math.isfinite(values):
        return None
    return values
