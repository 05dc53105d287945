"""Pictures of figures, drawn by matplotlib, which is imported only for them."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from diffeq_former.atomic_io import whole_file
from diffeq_former.errors import UserError

STYLES = ("-o", "--s", ":^", "-.D", "-v", "--x")  # of lines, told apart in grey
DPI = 150
COLOURS = "Greys"  # of heat maps and of tokens: the larger the darker


def new_picture(output: str) -> Path:
    """The path that --output names, before the work on what it will show.

    Raises:
      UserError: if it is no .png file or exists, or matplotlib is missing.
    """
    path = Path(output)
    if path.suffix != ".png" or path.exists():
        raise UserError(f"--output={path}: name a .png file that does not exist yet")
    require_matplotlib()
    return path


def require_matplotlib() -> None:
    """Raises UserError if it is missing: before the work on what it will show."""
    try:
        import matplotlib
    except ImportError as error:
        raise UserError("matplotlib is missing: pip install -e '.[plot]'") from error
    matplotlib.use("Agg")


@contextlib.contextmanager
def drawn(path: Path, size: tuple[float, float] = (6.4, 4), **subplots) -> Iterator:
    """Gives the axes of a picture, in inches, that is written in the end.

    Args:
      path: what `new_picture` gave, or in a new folder.
      size: width and height.
      **subplots: further options of matplotlib's function of that name.
    """
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=size, layout="constrained", **subplots)
    try:
        yield axes
        with whole_file(path) as partial:
            figure.savefig(partial, dpi=DPI, format="png")
    finally:
        pyplot.close(figure)


def plot_over_depth(axes, times_T, mean_T, figures: dict) -> None:
    """A line, in the band of its confidence interval, if there is one."""
    axes.plot(times_T, mean_T, "k-", label="mean")
    if None not in figures["low"]:
        label = "95 % confidence interval"
        low, high = figures["low"], figures["high"]
        axes.fill_between(times_T, low, high, color="0.8", label=label)
    axes.set_xlabel("time t (share of depth)")
    axes.grid(alpha=0.3)
