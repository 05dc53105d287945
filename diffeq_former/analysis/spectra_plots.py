"""Plots of spectra_over_depth.py. Panels that are compared have the same scales.

`found` holds the summary of each model, by role; P percentiles, T times, N heads, M
eigenvalues.
"""

from pathlib import Path

import numpy as np

from diffeq_former.analysis import plotting
from diffeq_former.analysis.spectra import BANDS

TITLES = {
    "qk": "QK$^T$/$\\sqrt{d_{head}}$",
    "ov": "OV",
    "ff": "feed-forward product",
}
_TIME = "time t (fraction of depth)"
_NUM_PATHS = 6


def plot_bands(found: dict, path: Path) -> None:
    """Plot percentiles over all heads, of magnitudes and of real parts."""
    columns = [(key, role) for key in ("magnitude", "real_part") for role in found]
    size = (3.4 * len(columns), 8)
    shape = {"nrows": len(TITLES), "ncols": len(columns), "squeeze": False}
    with plotting.saved_figure(path, size, sharex=True, **shape) as grid:
        for i, (key, role) in enumerate(columns):
            summary = found[role]
            for row, (name, title) in zip(grid, TITLES.items(), strict=True):
                axes = row[i]
                axes.sharey(row[i - i % len(found)])
                _plot_band(axes, summary["times"], summary[name][key])
                _mark_grid(axes, summary["grid"])
                axes.set_title(f"{title}, {summary['name']}", fontsize=9)
                label = "|eigenvalue|" if key == "magnitude" else "real part"
                axes.set_ylabel(label)
            grid[-1, i].set_xlabel(_TIME)
        _legend_above(grid[0, 0])


def _plot_band(axes, times_T, bands_PT) -> None:
    for low, grey in enumerate(("0.88", "0.72", "0.5")):
        label = f"{BANDS[low]} to {BANDS[-1 - low]} %"
        lower, upper = bands_PT[low], bands_PT[-1 - low]
        axes.fill_between(times_T, lower, upper, color=grey, linewidth=0, label=label)
    axes.plot(times_T, bands_PT[len(BANDS) // 2], "k-", label="median")
    axes.axhline(0, color="black", linewidth=0.5)
    axes.grid(alpha=0.3)


def _mark_grid(axes, grid_T) -> None:
    """Mark the times of the model's grid, and hatch those outside of its range."""
    axes.set_xlim(0, 1)
    axes.plot(
        grid_T,
        np.zeros(len(grid_T)),
        linestyle="none",
        marker="|",
        markersize=9,
        color="black",
        clip_on=False,
        transform=axes.get_xaxis_transform(),
        label="times of the model's grid",
    )
    for start, end in ((0, grid_T[0]), (grid_T[-1], 1)):
        _hatch(axes, start, end)


def _hatch(axes, start: float, end: float) -> None:
    if start < end:
        style = {"facecolor": "none", "edgecolor": "0.6", "hatch": "///"}
        label = "outside of its range"
        # Above filled areas, below lines.
        axes.axvspan(start, end, linewidth=0, zorder=1.5, label=label, **style)


def plot_heads(found: dict, path: Path) -> None:
    """Plot for each head the share of positive real parts and the largest magnitude."""
    rows = [
        (name, key) for name in ("qk", "ov") for key in ("positive_share", "largest")
    ]
    shape = {"nrows": len(rows), "ncols": len(found), "squeeze": False}
    with plotting.saved_figure(path, (1 + 4.5 * len(found), 9), **shape) as grid:
        for row, (name, key) in zip(grid, rows, strict=True):
            is_share = key == "positive_share"
            highest = max(summary[name][key].max() for summary in found.values())
            for axes, summary in zip(row, found.values(), strict=True):
                image = axes.imshow(
                    summary[name][key].T,
                    aspect="auto",
                    origin="lower",
                    cmap=plotting.COLORMAP,
                    interpolation="nearest",
                    vmin=0,
                    vmax=1 if is_share else highest,
                    extent=(0, 1, -0.5, summary[name][key].shape[1] - 0.5),
                )
                _mark_steps(axes, summary)
                axes.set_title(f"{TITLES[name]}, {summary['name']}", fontsize=9)
                plotting.integer_ticks(axes.yaxis)
            row[0].set_ylabel("head")
            label = "share of real parts > 0" if is_share else "largest |eigenvalue|"
            row[0].figure.colorbar(image, ax=list(row), label=label)
        for axes in grid[-1]:
            axes.set_xlabel("depth (one cell per time)")


def _mark_steps(axes, summary: dict) -> None:
    """Mark the grid where each of T cells of width 1 / T stands for a time."""
    times_T, grid_T = summary["times"], summary["grid"]
    axes.vlines(grid_T, -0.5, -0.35, color="black", linewidth=1.2)
    before, after = (times_T < grid_T[0]).sum(), (times_T > grid_T[-1]).sum()
    _hatch(axes, 0, before / len(times_T))
    _hatch(axes, 1 - after / len(times_T), 1)


def plot_paths(found: dict, paths: dict, head: int, path: Path) -> None:
    """Plot the real parts of the largest eigenvalues of one head, each as a path.

    Args:
      found: The summaries.
      paths: Result of `eigenvalue_tracking.track` [T, M] by (role, `qk` or `ov`).
      head: The head.
      path: The .png file to write.
    """
    names = ("qk", "ov")
    shape = {"nrows": len(names), "ncols": len(found), "squeeze": False}
    size = (5.5 * len(found), 7)
    with plotting.saved_figure(path, size, sharex=True, sharey="row", **shape) as grid:
        for row, name in zip(grid, names, strict=True):
            for axes, (role, summary) in zip(row, found.items(), strict=True):
                paths_TM = paths[role, name]
                order_M = np.argsort(-np.abs(paths_TM).max(0), kind="stable")
                on_grid = np.flatnonzero(np.isin(summary["times"], summary["grid"]))
                for style, m in zip(
                    plotting.STYLES, order_M[:_NUM_PATHS], strict=False
                ):
                    axes.plot(
                        summary["times"],
                        paths_TM[:, m].real,
                        style,
                        markevery=on_grid,
                        markersize=4,
                        linewidth=0.8,
                    )
                axes.axhline(0, color="black", linewidth=0.5)
                axes.grid(alpha=0.3)
                _mark_grid(axes, summary["grid"])
                title = f"{TITLES[name]}, head {head}, {summary['name']}"
                axes.set_title(title, fontsize=9)
            row[0].set_ylabel("real part of eigenvalue")
        for axes in grid[-1]:
            axes.set_xlabel(_TIME)
        _legend_above(grid[0, 0])


def plot_jumps(found: dict, path: Path) -> None:
    """Plot how far eigenvalues jump, against the spacing of the times."""
    with plotting.saved_figure(path, (10, 4), ncols=2, sharey=True) as panels:
        for axes, name in zip(panels, ("qk", "ov"), strict=True):
            for style, summary in zip(plotting.STYLES, found.values(), strict=False):
                spacings = [x["spacing"] for x in summary["jumps"]]
                means = [x[name]["mean"] for x in summary["jumps"]]
                axes.plot(spacings, means, style, label=summary["name"])
            for summary in found.values():
                for x in (x for x in summary["jumps"] if x["steps"] == 1):
                    label = "one step of the grid"
                    axes.axvline(x["spacing"], color="0.5", linestyle=":", label=label)
            jumps = [x[name]["mean"] for m in found.values() for x in m["jumps"]]
            if any(jumps):  # none: a single step, or constant weights
                axes.set(xscale="log", yscale="log")
            axes.set_xlabel("spacing (fraction of depth)")
            axes.set_title(TITLES[name], fontsize=9)
            axes.grid(alpha=0.3)
        panels[0].set_ylabel("mean jump / largest |eigenvalue|")
        _legend_above(panels[0])


def _legend_above(axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    axes.figure.legend(
        unique.values(), unique, loc="outside upper center", ncols=len(unique)
    )
