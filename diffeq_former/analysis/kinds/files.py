"""Numbers beside their pictures."""

import json
import math
from pathlib import Path

import numpy as np


def write_json(path: Path, values) -> None:
    """Arrays become lists, and what is not finite null."""
    path.write_text(json.dumps(plain(values), indent=1) + "\n", encoding="utf-8")


def plain(values):
    """The same of what JSON knows."""
    if isinstance(values, dict):
        return {key: plain(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [plain(value) for value in values]
    if hasattr(values, "tolist"):
        return plain(np.asarray(values).tolist())
    if isinstance(values, float) and not math.isfinite(values):
        return None
    return values
