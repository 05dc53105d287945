"""Searches of one number: whether the best value of one model suits the others."""

import math
from itertools import cycle
from pathlib import Path

import numpy as np

from diffeq_former.analysis import plotting
from diffeq_former.atomic_io import atomic_file
from diffeq_former.experiments import runs
from diffeq_former.experiments.comparison.study import Comparison
from diffeq_former.experiments.tables import markdown

PICTURE = "searches.png"
NOTE = """
The optimum is that of a parabola through the lowest loss and its neighbours, over the
logarithm of {setting}; the ratio is to that of {baseline}. The excess is
what a model loses with the best value of {baseline} instead of its own. Losses
are the last on validation text, in nats per token.
"""


def write(folder: Path, comparison: Comparison, trials: list[dict]) -> None:
    """Write the plot and the table, and print a JSON object for each model.

    Args:
      folder: The folder to write to.
      comparison: The study.
      trials: Rows of the runs of the search, measured.
    """
    summary = summarize(comparison, trials)
    note = NOTE.format(setting=comparison.searched, baseline=comparison.baseline)
    with atomic_file(folder / "table.md") as path:
        rounded = [
            {name: f"{x:.4g}" if type(x) is float else x for name, x in row.items()}
            for row in summary
        ]
        path.write_text(markdown(rounded) + "\n" + note, encoding="utf-8")
    runs.report(folder, summary)
    plot(comparison, trials, folder / PICTURE)


def summarize(comparison: Comparison, trials: list[dict]) -> list[dict]:
    """Compare the best values of each model with those of the baseline.

    Args:
      comparison: The study.
      trials: Rows with model and validation_loss.

    Returns:
      A row for each model: its best value and loss; the interpolated optimum, and its
      ratio to the baseline's, None if the best value is at an end of the range or has a
      neighbour that diverged; the excess, None if the model was not trained with the
      baseline's best value.
    """
    points = {model: _points(comparison, model, trials) for model in comparison.models}
    best = {model: min(of, key=of.get) for model, of in points.items()}
    optima = {model: optimum(list(of.items())) for model, of in points.items()}
    reference = optima[comparison.baseline]
    rows = []
    for model, losses in points.items():
        lowest, found = losses[best[model]], optima[model]
        usual = losses.get(best[comparison.baseline])
        rows.append(
            {
                "model": model,
                "best": best[model],
                "loss": lowest,
                "optimum": found,
                "ratio": found / reference if found and reference else None,
                "excess": None if usual is None else usual - lowest,
            }
        )
    return rows


def optimum(points: list[tuple[float, float]]) -> float | None:
    """Return the minimum of a parabola through the lowest point and its neighbours.

    Args:
      points: Values, all above 0, and losses; the parabola is over the logarithm of the
        value.

    Returns:
      The value at the minimum; None if there are no two finite neighbours.
    """
    ordered = sorted(points)
    lowest = min(range(len(ordered)), key=lambda i: ordered[i][1])
    near = ordered[max(0, lowest - 1) : lowest + 2]
    if len(near) < 3 or not all(math.isfinite(loss) for _, loss in near):
        return None
    values, losses = zip(*near, strict=True)
    curvature, slope, _ = np.polyfit(np.log(values), losses, 2)
    return math.exp(-slope / (2 * curvature))


def plot(comparison: Comparison, trials: list[dict], picture: Path) -> None:
    """Plot the loss of each trial over the searched value: a line for each model."""
    ticks = set()
    with plotting.saved_figure(picture, (8, 4)) as axes:
        for model, style in zip(comparison.models, cycle(plotting.STYLES)):
            points = sorted(_points(comparison, model, trials).items())
            good = [point for point in points if point[1] < math.inf]
            bad = ", ".join(f"{x:g}" for x, loss in points if loss == math.inf)
            label = f"{model} (diverged at {bad})" if bad else model
            axes.plot(*zip(*good, strict=True), style, label=label)
            ticks |= dict(points).keys()
        if min(ticks) > 0:
            axes.set_xscale("log")
            axes.minorticks_off()
        axes.set_xticks(sorted(ticks), [f"{x:g}" for x in sorted(ticks)])
        axes.set_xlabel(comparison.searched)
        axes.set_ylabel("last validation loss (nats per token)")
        axes.grid(alpha=0.3)
        axes.figure.legend(loc="outside right upper")


def _points(
    comparison: Comparison, model: str, trials: list[dict]
) -> dict[float, float]:
    """Return the loss of a model for each searched value."""
    values = comparison.search[model][comparison.searched]
    losses = [row["validation_loss"] for row in trials if row["model"] == model]
    return dict(zip(values, losses, strict=True))
