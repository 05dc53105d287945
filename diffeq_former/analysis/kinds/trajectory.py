"""The shape of the way that the states of sentences take through depth."""

from pathlib import Path

import numpy as np

from diffeq_former.analysis import plotting
from diffeq_former.analysis.kinds.files import write_json
from diffeq_former.analysis.kinds.states import (
    depths,
    over_sentences,
    plot_over_depth,
    states_of,
)

# Of each figure over depth: its axis, and which of the times it belongs to.
_FIGURES = {
    "norm": ("|x|", slice(None)),
    "speed": ("step / its length in time", slice(1, None)),
    "angle": ("angle to the next step (degrees)", slice(1, -1)),
    "effective_rank": ("effective rank of the tokens' states", slice(None)),
    "deviation": ("distance from the straight line", slice(None)),
}


def trajectory(trained, folder: Path, *, sentences) -> list[dict]:
    """Writes trajectory.json (per token and averaged) and trajectory.png."""
    from diffeq_former.analysis.statistics import interval
    from diffeq_former.analysis.trajectory import describe

    horizon = trained.config.interval
    described = [describe(states_of(trained, s), horizon) for s in sentences]
    over_depth = {
        name: over_sentences([_over_tokens(d[name]) for d in described])
        for name in _FIGURES
    }
    excess = [float((d["cost"] / d["least_cost"]).mean()) for d in described]
    summary = {
        "transport cost": interval([d["cost"].mean() for d in described]),
        "transport cost, least": interval([d["least_cost"].mean() for d in described]),
        "transport cost, times the least": interval(excess),
    }
    times = depths(trained)
    measured = [
        {"text": s.text, "tokens": s.tokens, **d}
        for s, d in zip(sentences, described, strict=True)
    ]
    numbers = {"interval": horizon, "times": times, "summary": summary}
    numbers |= {"mean": over_depth, "sentences": measured}
    write_json(folder / "trajectory.json", numbers)
    _draw(folder / "trajectory.png", times, over_depth, excess)
    return [{"measure": name} | figures for name, figures in summary.items()]


def _over_tokens(values: np.ndarray) -> np.ndarray:
    """The mean over the tokens that have one; of what is one for all, itself."""
    if values.ndim == 1:
        return values
    known = np.isfinite(values)
    counts = known.sum(1)
    sums = np.where(known, values, 0).sum(1)
    return np.divide(sums, counts, out=np.full(len(values), np.nan), where=counts > 0)


def _draw(path: Path, times, over_depth: dict, excess: list[float]) -> None:
    with plotting.drawn(path, (12, 7), nrows=2, ncols=3) as grid:
        *panels, last = grid.flat
        for axes, (name, (words, where)) in zip(panels, _FIGURES.items(), strict=True):
            figures = over_depth[name]
            mean = [np.nan if x is None else x for x in figures["mean"]]
            plot_over_depth(axes, times[where], mean, figures)
            axes.set_ylabel(words)
        panels[0].legend()
        last.hist(excess, bins=min(20, 1 + len(excess)), color="0.6", edgecolor="black")
        last.set(xlabel="transport cost / that of a straight line", ylabel="sentences")
        last.grid(alpha=0.3)
