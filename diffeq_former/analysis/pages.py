"""Self-contained HTML pages, readable on small screens."""

import base64
import html
from pathlib import Path

from diffeq_former.analysis import plotting

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
@media (max-width: 44em) {{ img {{ max-width: 44em; }} }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
pre {{ background: #eee; padding: 1em; }}
div {{ overflow-x: auto; margin: 0.5em 0; }}
td, th {{ padding: 2px 8px; text-align: left; font-weight: normal; }}
th {{ color: #555; }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def page(title: str, body: str) -> str:
    """Return a complete page; `body` is HTML, `title` plain text."""
    return _PAGE.format(title=html.escape(title), body=body)


def section(title: str, body: str) -> str:
    """Return a heading followed by `body` (HTML)."""
    return f"<h2>{html.escape(title)}</h2>\n{body}"


def paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def verbatim(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>"


def folded(title: str, body: str) -> str:
    """Return a collapsed block, which expands when its title is clicked."""
    return f"<details><summary>{html.escape(title)}</summary>\n{body}\n</details>"


def table(rows: list[dict]) -> str:
    """Return an HTML table with a column for each name that has a value in any row.

    A single row is transposed: one line for each name.
    """
    names = [name for row in rows for name in row if row[name] is not None]
    names = list(dict.fromkeys(names))
    if len(rows) == 1:
        lines = [_cells([name], "th") + _cells([rows[0][name]]) for name in names]
    else:
        lines = [_cells([row.get(name) for name in names]) for row in rows]
        lines.insert(0, _cells(names, "th"))
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f"<div><table>\n{body}\n</table></div>"


def picture(path: Path) -> str:
    """Embed a .png file; on a narrow screen it scrolls horizontally."""
    content = path.read_bytes()
    inches = int.from_bytes(content[16:20], "big") / plotting.DPI
    data, alt = base64.b64encode(content).decode(), html.escape(path.stem)
    source = f'alt="{alt}" src="data:image/png;base64,{data}"'
    return f'<div><img style="width:{inches:.4g}in" {source}></div>'


def link(path: Path) -> str:
    """Return a link to a file in the folder of the page."""
    name = html.escape(path.name)
    return f'<a href="{name}">{name}</a>'


def _cells(values: list, tag: str = "td") -> str:
    return "".join(f"<{tag}>{html.escape(_text(value))}</{tag}>" for value in values)


def _text(value) -> str:
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
