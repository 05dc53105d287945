"""What an analysis leaves in its folder: values, plots, and a page that binds them."""

import json
import math
from pathlib import Path

import numpy as np

from diffeq_former.analysis import pages

PAGE = "index.html"


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


def bind(folder: Path, title: str, figures: list[dict]) -> None:
    """Writes index.html, which holds the pictures and opens without a network.

    Args:
      folder: of the pictures (.png) and the numbers behind them.
      title: of the page.
      figures: rows of its table.
    """
    paths = sorted(folder.iterdir())
    pictures = [pages.picture(path) for path in paths if path.suffix == ".png"]
    files = [pages.link(path) for path in paths if path.suffix != ".png"]
    numbers = f"<p>Numbers: {', '.join(files)}</p>"
    body = "\n".join([pages.table(figures), *pictures, numbers])
    (folder / PAGE).write_text(pages.page(title, body), encoding="utf-8")
