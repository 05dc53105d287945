"""The output of an analysis: JSON files, and a page with all plots."""

from pathlib import Path

from diffeq_former.analysis import pages
from diffeq_former.json_io import dumps

PAGE = "index.html"


def write_json(path: Path, values) -> None:
    """Write values as JSON, see json_io.py."""
    path.write_text(dumps(values, indent=1) + "\n", encoding="utf-8")


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
