"""Heat maps of tokens, shaded by measured values: as a page, and as a plot.

The last token, whose prediction is analysed, is outlined and shows its value: it often
exceeds all others by far, so the shades span the values of the other tokens.
"""

import html
from pathlib import Path

from diffeq_former.analysis import pages, plotting

_LEGEND = (
    "Darker is larger, from the lowest value of a line to its highest, not counting the"
    " last token, which is outlined and followed by its value. Hover over any other"
    " token to see its value."
)
_MAX_PLOTTED = 5  # sentences in the plot
_MAX_CHARACTERS = 12  # of a token's label


def shares(values) -> list[float]:
    """Rescale values linearly from 0 (the lowest) to 1 (the highest)."""
    low, high = min(values), max(values)
    return [(v - low) / (high - low) if high > low else 0.0 for v in values]


def write_page(path: Path, title: str, sentences: list[dict], rows: dict) -> None:
    """Write an HTML page with a table for each sentence.

    Args:
      path: The .html file.
      title: Title of the page.
      sentences: Each with `tokens`, `predicted` and a list of values for each row, of
        two tokens at least.
      rows: Labels of the rows, by the name of their values.
    """
    tables = [_table(sentence, rows) for sentence in sentences]
    body = "\n".join([pages.paragraph(_LEGEND), *tables])
    path.write_text(pages.page(title, body), encoding="utf-8")


def _table(sentence: dict, rows: dict) -> str:
    lines = []
    *others, last = sentence["tokens"]
    for name, label in rows.items():
        *values, last_value = sentence[name]
        parts = zip(others, values, shares(values), strict=True)
        cells = "".join(_span(*part) for part in parts) + _outlined(last, last_value)
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


def _outlined(token: str, value: float) -> str:
    style = "border:2px solid black;padding:0 2px;white-space:pre-wrap"
    return f'<span style="{style}">{html.escape(token)}</span> {value:.3g}'


def plot(path: Path, sentences: list[dict], rows: dict) -> None:
    """Plot the first sentences; Args as for `write_page`."""
    plotted = sentences[:_MAX_PLOTTED]
    width = max(6.4, 3 + 0.36 * max(len(s["tokens"]) for s in plotted))
    size, shape = (width, 2.6 * len(plotted)), {"nrows": len(plotted), "squeeze": False}
    with plotting.saved_figure(path, size, **shape) as grid:
        for axes, sentence in zip(grid[:, 0], plotted, strict=True):
            _plot(axes, sentence, rows)


def _plot(axes, sentence: dict, rows: dict) -> None:
    from matplotlib.patches import Rectangle

    last = len(sentence["tokens"]) - 1
    image = axes.imshow(
        [shares(sentence[name][:last]) for name in rows],
        aspect="auto",
        cmap=plotting.COLORMAP,
        vmin=0,
        vmax=1,
    )
    for row, name in enumerate(rows):
        cell = (last - 0.5, row - 0.5)
        axes.add_patch(Rectangle(cell, 1, 1, fill=False, lw=1.5, clip_on=False))
        value = f"{sentence[name][last]:.2g}"
        axes.text(last, row, value, ha="center", va="center", fontsize=6)
    axes.set_xlim(-0.5, last + 0.5)
    label_tokens(axes.xaxis, sentence["tokens"])
    axes.set_yticks(range(len(rows)), rows.values(), fontsize=7)
    axes.set_xlabel(
        f"token (the last one: its values); predicted: {label(sentence['predicted'])}"
    )
    axes.figure.colorbar(image, ax=axes, label="lowest (0) to\nhighest (1)")


def label_tokens(axis, tokens, most: int | None = None) -> None:
    """Label the positions on an x or y axis with their tokens.

    Args:
      axis: The axis, of which one unit is a token.
      tokens: The tokens as text.
      most: The largest number of labels; of more tokens, only every k-th has one.
    """
    places = range(0, len(tokens), -(-len(tokens) // most) if most else 1)
    rotation = 90 if axis.axis_name == "x" else 0
    labels = [label(tokens[place]) for place in places]
    axis.set_ticks(places, labels, rotation=rotation, fontsize=7)


def label(token: str) -> str:
    """Return a token as a short label, with what matplotlib cannot show escaped."""
    shown = repr(token)[1:-1].encode("ascii", "backslashreplace").decode()
    if len(shown) > _MAX_CHARACTERS:
        shown = shown[: _MAX_CHARACTERS - 2] + ".."
    return shown.replace("$", r"\$")
