"""One page that binds what a kind wrote: its figures, pictures and files."""

from pathlib import Path

from diffeq_former.analysis import pages

PAGE = "index.html"


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
