"""Pages of HTML that open without a network and can be read on a phone."""

import base64
import html
from pathlib import Path

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
body {{ font-family: sans-serif; margin: 1em auto; max-width: 70em; padding: 0 1em; }}
img {{ max-width: 100%; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
pre {{ background: #eee; padding: 1em; }}
div {{ overflow-x: auto; }}
td, th {{ padding: 2px 8px; text-align: left; font-weight: normal; }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def page(title: str, body: str) -> str:
    """The whole page; `body` is HTML."""
    return _PAGE.format(title=html.escape(title), body=body)


def section(title: str, body: str) -> str:
    return f"<h2>{html.escape(title)}</h2>\n{body}"


def paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def verbatim(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>"


def folded(title: str, body: str) -> str:
    """Shown when its title is clicked."""
    return f"<details><summary>{html.escape(title)}</summary>\n{body}\n</details>"


def table(rows: list[dict]) -> str:
    """A line for each row; a column for each name that any of them has."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [_line(names, "th")]
    lines += [_line([_cell(row.get(name)) for name in names], "td") for row in rows]
    return "<div><table>\n" + "\n".join(lines) + "\n</table></div>"


def picture(path: Path) -> str:
    """A .png file, as a part of the page."""
    data = base64.b64encode(path.read_bytes()).decode()
    words = html.escape(path.stem)
    return f'<p><img alt="{words}" src="data:image/png;base64,{data}"></p>'


def link(path: Path) -> str:
    """To a file beside the page."""
    name = html.escape(path.name)
    return f'<a href="{name}">{name}</a>'


def _line(cells: list[str], tag: str) -> str:
    return (
        "<tr>"
        + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)
        + "</tr>"
    )


def _cell(value) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
