"""Plots with matplotlib, which is imported only when a plot is made."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from diffeq_former.atomic_io import atomic_file, check_new
from diffeq_former.errors import require_extra

# Line styles that are distinct in greyscale.
STYLES = ("-o", "--s", ":^", "-.D", "-v", "--x", ":P")
DPI = 150
COLORMAP = "Greys"  # colour map of all heat maps: larger values are darker


def new_plot(output: str) -> Path:
    """Check the value of --output before the plotted values are computed.

    Returns:
      The path of the plot.

    Raises:
      UserError: If it does not end in .png or exists, or if matplotlib is missing.
    """
    path = Path(output)
    check_new(path, ".png")
    require_matplotlib()
    return path


def require_matplotlib() -> None:
    """Select a backend without a display; raise UserError if matplotlib is missing."""
    require_extra("plot", "matplotlib")
    import matplotlib

    matplotlib.use("Agg")


@contextlib.contextmanager
def saved_figure(
    path: Path, size: tuple[float, float] = (6.4, 4), **subplots
) -> Iterator:
    """Yield the axes of a new figure, which is saved when the context ends.

    Args:
      path: The .png file to write.
      size: Width and height in inches.
      **subplots: Further options of `pyplot.subplots`.
    """
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=size, layout="constrained", **subplots)
    try:
        yield axes
        with atomic_file(path) as partial:
            figure.savefig(partial, dpi=DPI, format="png")
    finally:
        pyplot.close(figure)


def logarithmic_y(axes) -> None:
    """Make the y axis logarithmic, with plain numbers on it: 60, not 6 x 10^1."""
    from matplotlib import ticker

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(ticker.LogFormatter())
    axes.yaxis.set_minor_formatter(ticker.LogFormatter())


def integer_ticks(*axes) -> None:
    """Put the ticks of these x or y axes at integers, even if there is only one."""
    for axis in axes:
        axis.get_major_locator().set_params(integer=True, min_n_ticks=1)


def plot_over_depth(axes, times_T, mean_T, summary: dict) -> None:
    """Plot the mean over depth, with the band of its confidence interval if known."""
    axes.plot(times_T, mean_T, "k-", label="mean")
    if None not in summary["low"]:
        label = "95 % confidence interval"
        low, high = summary["low"], summary["high"]
        axes.fill_between(times_T, low, high, color="0.8", label=label)
    axes.set_xlabel("time t (fraction of depth)")
    axes.grid(alpha=0.3)


def plot_mean_and_range(axes, x_N, values_SN, style: str, label: str) -> None:
    """Plot the mean over seeds S with the band from the lowest to the highest."""
    columns = list(zip(*values_SN, strict=True))
    [line] = axes.plot(x_N, [sum(c) / len(c) for c in columns], style, label=label)
    if len(values_SN) > 1:
        low, high = map(min, columns), map(max, columns)
        axes.fill_between(x_N, list(low), list(high), alpha=0.2, color=line.get_color())
