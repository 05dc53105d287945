"""The output of an analysis: JSON files, and a page with all plots."""

import json
import math
from pathlib import Path

import numpy as np

from diffeq_former.analysis import pages

PAGE = "index.html"


def write_json(path: Path, values) -> None:
    """Write values as JSON; see `plain` for arrays and non-finite numbers."""
    path.write_text(json.dumps(plain(values), indent=1) + "\n", encoding="utf-8")


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


def bind(folder: Path, title: str, rows: list[dict]) -> None:
    """Write index.html with a table, the plots and links to the other files.

    Args:
      folder: Folder of the plots (.png) and the values they show.
      title: Title of the page.
      rows: Rows of the table.
    """
    paths = sorted(folder.iterdir())
    pictures = [pages.picture(path) for path in paths if path.suffix == ".png"]
    files = [pages.link(path) for path in paths if path.suffix != ".png"]
    numbers = f"<p>Values: {', '.join(files)}</p>"
    body = "\n".join([pages.table(rows), *pictures, numbers])
    (folder / PAGE).write_text(pages.page(title, body), encoding="utf-8")
