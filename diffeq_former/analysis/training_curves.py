"""Plots of a run's training metrics."""

from pathlib import Path

from diffeq_former.analysis import plotting
from diffeq_former.training import metrics_file

# Title, unit and metrics of each panel.
PANELS = (
    ("loss", "nats per token", ("loss", "validation/loss")),
    ("gradient norm", "", ("grad_norm", "grad_norm/bank", "grad_norm/time_mlp")),
    ("learning rate", "", ("learning_rate",)),
    ("speed", "tokens/s", ("tokens_per_second",)),
)

Metrics = dict[str, list[tuple[int, float]]]


def read(workdir: Path) -> Metrics:
    """Read the (step, value) pairs of each metric; values that are null are skipped.

    Raises:
      UserError: If the run's metrics are damaged.
    """
    metrics: Metrics = {}
    for values in metrics_file.read(workdir):
        step = values.pop("step")
        for name, value in values.items():
            if isinstance(value, int | float):
                metrics.setdefault(name, []).append((step, value))
    return metrics


def plot(metrics: Metrics, path: Path) -> None:
    """Plot the metrics of `PANELS` over steps into a .png file."""
    with plotting.saved_figure(path, (11, 7), nrows=2, ncols=2) as grid:
        for axes, (title, unit, names) in zip(grid.flat, PANELS, strict=True):
            known = [name for name in names if name in metrics]
            for style, name in zip(plotting.STYLES, known, strict=False):
                steps, values = zip(*metrics[name], strict=True)
                every = max(1, len(steps) // 8)
                axes.plot(steps, values, style, markevery=every, label=name)
            axes.set(title=title, xlabel="optimizer step", ylabel=unit)
            axes.grid(alpha=0.3)
            if known:
                axes.legend(fontsize=8)
