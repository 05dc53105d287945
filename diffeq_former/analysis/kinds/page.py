"""One page that binds what a kind wrote: its figures, pictures and files."""

import base64
import html
from pathlib import Path

PAGE = "index.html"
_HTML = """<!DOCTYPE html>
<html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font-family: sans-serif; margin: 1em auto; max-width: 70em; padding: 0 1em; }}
img {{ max-width: 100%; }}
div {{ overflow-x: auto; }}
td, th {{ padding: 2px 8px; text-align: left; }}
</style>
<h1>{title}</h1>
<div><table>
{table}
</table></div>
{pictures}
<p>Numbers: {files}</p>
</html>
"""


def bind(folder: Path, title: str, figures: list[dict]) -> None:
    """Writes index.html, which holds the pictures and opens without a network.

    Args:
      folder: of the pictures (.png) and the numbers behind them.
      title: of the page.
      figures: rows of its table, all with the same names.
    """
    paths = sorted(folder.iterdir())
    pictures = [_picture(path) for path in paths if path.suffix == ".png"]
    files = [_link(path) for path in paths if path.suffix != ".png"]
    page = _HTML.format(
        title=html.escape(title),
        table=_table(figures),
        pictures="\n".join(pictures),
        files=", ".join(files),
    )
    (folder / PAGE).write_text(page, encoding="utf-8")


def _table(figures: list[dict]) -> str:
    names = list(dict.fromkeys(name for row in figures for name in row))
    rows = [[_cell(row.get(name)) for name in names] for row in figures]
    header = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    lines = ["".join(f"<td>{html.escape(x)}</td>" for x in row) for row in rows]
    return "\n".join(f"<tr>{line}</tr>" for line in (header, *lines))


def _cell(value) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _picture(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    words = html.escape(path.stem)
    return f'<p><img alt="{words}" src="data:image/png;base64,{data}"></p>'


def _link(path: Path) -> str:
    name = html.escape(path.name)
    return f'<a href="{name}">{name}</a>'
