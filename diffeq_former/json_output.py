"""JSON output of any numbers: arrays are lists, and non-finite numbers are null."""

import json
import math

import numpy as np


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
