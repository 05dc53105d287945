"""Plots of induction.py.

T grid steps, N heads.
"""

from pathlib import Path

import numpy as np

from diffeq_former.analysis import plotting

_LABELS = {"prefix_matching": "prefix matching", "copying": "copying"}
# Scores and the statistics of eigenvalues on the horizontal axes.
_PANELS = (
    ("prefix_matching", "least_positive_share", "smaller positive share of QK and OV"),
    (
        "copying",
        "full_ov_sum",
        "$\\Sigma\\lambda\\,/\\,\\Sigma|\\lambda|$ of W$_E$ OV W$_U$",
    ),
)


def plot_scores(path: Path, found: dict) -> None:
    """Plot the scores per head and step, models side by side on the same scales."""
    shape = {"nrows": len(_LABELS), "ncols": len(found), "squeeze": False}
    size = (1.5 + 3.5 * len(found), 5.5)
    with plotting.saved_figure(path, size, sharex=True, sharey=True, **shape) as grid:
        for row, (key, label) in zip(grid, _LABELS.items(), strict=True):
            scores = [summary["scores"][key] for summary in found.values()]
            highest = 1 if key == "copying" else max(x_TN.max() for x_TN in scores)
            for axes, summary, x_TN in zip(row, found.values(), scores, strict=True):
                T, N = x_TN.shape
                image = axes.imshow(
                    x_TN.T,
                    aspect="auto",
                    origin="lower",
                    cmap=plotting.COLORMAP,
                    vmin=0,
                    vmax=highest,
                    extent=(0.5, T + 0.5, -0.5, N - 0.5),
                )
                axes.set_title(f"{label}, {summary['name']}", fontsize=9)
                plotting.integer_ticks(axes.xaxis, axes.yaxis)
            row[0].set_ylabel("head")
            row[0].figure.colorbar(image, ax=list(row), label=label)
        _fit([x_TN.shape for x_TN in scores], grid[0, 0])
        for axes in grid[-1]:
            axes.set_xlabel("solver step")


def _fit(shapes: list, axes) -> None:
    """Let shared axes show the model with the most steps and that with most heads."""
    most_T, most_N = np.max(shapes, axis=0)
    axes.set(xlim=(0.5, most_T + 0.5), ylim=(-0.5, most_N - 0.5))


def plot_against_eigenvalues(path: Path, found: dict) -> None:
    """Plot each head's scores against statistics of its eigenvalues."""
    with plotting.saved_figure(path, (10, 4), ncols=len(_PANELS)) as panels:
        for axes, (score, statistic, label) in zip(panels, _PANELS, strict=True):
            for marker, summary in zip("ox", found.values(), strict=False):
                axes.plot(
                    summary["eigenvalues"][statistic].ravel(),
                    summary["scores"][score].ravel(),
                    "k" + marker,
                    markerfacecolor="none",
                    markersize=5,
                    label=summary["name"],
                )
            axes.set(xlabel=label, ylabel=_LABELS[score])
            axes.set_ylim(0, 1 if score == "copying" else None)
            axes.grid(alpha=0.3)
        panels[-1].figure.legend(
            *panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=2
        )
