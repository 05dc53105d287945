"""Curves over training of the models of a study."""

import math
from collections.abc import Callable
from itertools import cycle
from operator import itemgetter

from diffeq_former.analysis import plotting

Label = Callable[[dict], str]


def plot_losses(
    axes, rows: list[dict], key: str = "losses", label: Label = itemgetter("model")
) -> None:
    """Plot values over optimizer steps: a line for the runs of each label.

    The line is the mean over these runs, with a band from the lowest to the highest.

    Args:
      axes: The axes of matplotlib.
      rows: A row for each run, with its `steps` and the values at these.
      key: The key of the values.
      label: Returns the label of a row.
    """
    of_label: dict[str, list[dict]] = {}
    for row in rows:
        of_label.setdefault(label(row), []).append(row)
    for (name, found), style in zip(of_label.items(), cycle(plotting.STYLES)):
        values = [row[key] for row in found]
        plotting.plot_mean_and_range(axes, found[0]["steps"], values, style, name)
    axes.set_xlabel("optimizer step")
    axes.grid(alpha=0.3, which="both")


def plot_perplexities(
    axes, rows: list[dict], key: str = "losses", label: Label = itemgetter("model")
) -> None:
    """As `plot_losses`, the exponentials of the values on a logarithmic axis."""
    perplexities = [row | {key: [math.exp(x) for x in row[key]]} for row in rows]
    plot_losses(axes, perplexities, key, label)
    plotting.logarithmic_y(axes)
