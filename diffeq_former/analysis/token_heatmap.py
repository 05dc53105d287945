"""Tokens coloured by what measures say of them: a page, and a picture."""

import html
from pathlib import Path

from diffeq_former.analysis import pages, plotting

_LEGEND = (
    "The darker, the larger, from the lowest of a line to its highest. Pointing at a"
    " token shows its figure."
)
_MOST_DRAWN = 5  # sentences in a picture


def shares(values) -> list[float]:
    """From 0, the lowest, to 1, the highest: that one is always the darkest."""
    low, high = min(values), max(values)
    return [(v - low) / (high - low) if high > low else 0.0 for v in values]


def write_page(path: Path, title: str, sentences: list[dict], rows: dict) -> None:
    """A table for each sentence.

    Args:
      path: of the .html file.
      title: of the page.
      sentences: each with `tokens`, `predicted` and a list of values for each row.
      rows: what the values are, in words, by name.
    """
    tables = [_table(sentence, rows) for sentence in sentences]
    body = "\n".join([pages.paragraph(_LEGEND), *tables])
    path.write_text(pages.page(title, body), encoding="utf-8")


def _table(sentence: dict, rows: dict) -> str:
    lines = []
    for name, words in rows.items():
        values = sentence[name]
        parts = zip(sentence["tokens"], values, shares(values), strict=True)
        cells = "".join(_span(*part) for part in parts)
        lines.append(f"<tr><th>{html.escape(words)}</th><td>{cells}</td></tr>")
    predicted = html.escape(repr(sentence["predicted"]))
    table = f"<div><table>{''.join(lines)}</table></div>"
    return f"{table}<p>predicted: {predicted}</p><hr>"


def _span(token: str, value: float, share: float) -> str:
    grey = round(255 * (1 - share))
    ink = "white" if grey < 128 else "black"
    style = f"background:rgb({grey},{grey},{grey});color:{ink};white-space:pre-wrap"
    return f'<span style="{style}" title="{value:.4g}">{html.escape(token)}</span>'


def draw(path: Path, sentences: list[dict], rows: dict) -> None:
    """As the page, of the first sentences."""
    drawn = sentences[:_MOST_DRAWN]
    width = max(6.4, 3 + 0.3 * max(len(s["tokens"]) for s in drawn))
    size, shape = (width, 2.6 * len(drawn)), {"nrows": len(drawn), "squeeze": False}
    with plotting.drawn(path, size, **shape) as grid:
        for axes, sentence in zip(grid[:, 0], drawn, strict=True):
            image = axes.imshow(
                [shares(sentence[name]) for name in rows],
                aspect="auto",
                cmap=plotting.COLOURS,
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
    """As matplotlib can draw it: whitespace as escapes, no mathematics, ASCII."""
    shown = repr(token)[1:-1].replace("$", r"\$")
    return shown.encode("ascii", "backslashreplace").decode()
