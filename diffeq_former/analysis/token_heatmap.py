"""Heat maps of tokens, shaded by measured values: as a page, and as a plot."""

import html
from pathlib import Path

from diffeq_former.analysis import pages, plotting

_LEGEND = (
    "Darker is larger, from the lowest value of a line to its highest. Hover over a"
    " token to see its value."
)
_MAX_PLOTTED = 5  # sentences in the plot


def shares(values) -> list[float]:
    """Rescale values linearly from 0 (the lowest) to 1 (the highest)."""
    low, high = min(values), max(values)
    return [(v - low) / (high - low) if high > low else 0.0 for v in values]


def write_page(path: Path, title: str, sentences: list[dict], rows: dict) -> None:
    """Write an HTML page with a table for each sentence.

    Args:
      path: The .html file.
      title: Title of the page.
      sentences: Each with `tokens`, `predicted` and a list of values for each row.
      rows: Labels of the rows, by the name of their values.
    """
    tables = [_table(sentence, rows) for sentence in sentences]
    body = "\n".join([pages.paragraph(_LEGEND), *tables])
    path.write_text(pages.page(title, body), encoding="utf-8")


def _table(sentence: dict, rows: dict) -> str:
    lines = []
    for name, label in rows.items():
        values = sentence[name]
        parts = zip(sentence["tokens"], values, shares(values), strict=True)
        cells = "".join(_span(*part) for part in parts)
        lines.append(f"<tr><th>{html.escape(label)}</th><td>{cells}</td></tr>")
    predicted = html.escape(repr(sentence["predicted"]))
    table = f"<div><table>{''.join(lines)}</table></div>"
    return f"{table}<p>predicted: {predicted}</p><hr>"


def _span(token: str, value: float, share: float) -> str:
    grey = round(255 * (1 - share))
    text_colour = "white" if grey < 128 else "black"
    style = (
        f"background:rgb({grey},{grey},{grey});color:{text_colour};white-space:pre-wrap"
    )
    return f'<span style="{style}" title="{value:.4g}">{html.escape(token)}</span>'


def plot(path: Path, sentences: list[dict], rows: dict) -> None:
    """Plot the first sentences; Args as for `write_page`."""
    plotted = sentences[:_MAX_PLOTTED]
    width = max(6.4, 3 + 0.3 * max(len(s["tokens"]) for s in plotted))
    size, shape = (width, 2.6 * len(plotted)), {"nrows": len(plotted), "squeeze": False}
    with plotting.saved_figure(path, size, **shape) as grid:
        for axes, sentence in zip(grid[:, 0], plotted, strict=True):
            image = axes.imshow(
                [shares(sentence[name]) for name in rows],
                aspect="auto",
                cmap=plotting.COLORMAP,
                vmin=0,
                vmax=1,
            )
            labels = [plain_text(token) for token in sentence["tokens"]]
            axes.set_xticks(range(len(labels)), labels, rotation=90, fontsize=7)
            axes.set_yticks(range(len(rows)), rows.values(), fontsize=7)
            axes.set_xlabel(
                f"token; predicted next: {plain_text(sentence['predicted'])}"
            )
            axes.figure.colorbar(image, ax=axes, label="lowest (0) to highest (1)")


def plain_text(token: str) -> str:
    """Escape whitespace, `$` and non-ASCII characters for matplotlib."""
    shown = repr(token)[1:-1].replace("$", r"\$")
    return shown.encode("ascii", "backslashreplace").decode()
