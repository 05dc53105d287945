"""The shape of the way that states take through depth.

L length, D model, T grid steps.
"""

from pathlib import Path

import numpy as np

from diffeq_former.analysis import plotting
from diffeq_former.analysis.loaded_model import depths, states_of
from diffeq_former.analysis.plotting import plot_over_depth
from diffeq_former.analysis.results import write_json
from diffeq_former.analysis.statistics import interval, over_sentences


def describe(states_TLD: np.ndarray, interval: float) -> dict[str, np.ndarray]:
    """Figures of a sequence's states at equally spaced times, the first and the last.

    Args:
      states_TLD: T + 1 states.
      interval: the length of depth, in units of time.

    Returns:
      `norm` [T + 1, L]: |x|.
      `speed` [T, L]: |x_k+1 - x_k| / h.
      `angle` [T - 1, L], degrees: between one step and the next; NaN after none.
      `effective_rank` [T + 1]: of the tokens' states, see `effective_rank`.
      `deviation` [T + 1, L]: |x - (straight line from first to last at this time)|.
      `cost` [L]: integral of |dx/dt|^2, the kinetic cost of optimal transport.
      `least_cost` [L]: that of the straight line at constant speed, the lowest with
      these ends (Benamou and Brenier 2000).
    """
    x = np.asarray(states_TLD, float)
    steps = np.diff(x, axis=0)
    T = len(steps)
    h = interval / T
    part = np.linspace(0, 1, T + 1)[:, None, None]
    straight = (1 - part) * x[:1] + part * x[-1:]
    return {
        "norm": np.linalg.norm(x, axis=-1),
        "speed": np.linalg.norm(steps, axis=-1) / h,
        "angle": angles(steps[:-1], steps[1:]),
        "effective_rank": np.array([effective_rank(x_LD) for x_LD in x]),
        "deviation": np.linalg.norm(x - straight, axis=-1),
        "cost": np.square(steps).sum((0, -1)) / h,
        "least_cost": np.square(x[-1] - x[0]).sum(-1) / interval,
    }


def angles(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Between vectors along the last axis, in degrees; NaN where one is zero.

    By both differences and sums of directions (Kahan), exact also near 0 and 180.
    """
    a_norm, b_norm = (np.linalg.norm(v, axis=-1, keepdims=True) for v in (a, b))
    a, b = a * b_norm, b * a_norm
    difference, total = (np.linalg.norm(v, axis=-1) for v in (a - b, a + b))
    degrees = np.degrees(2 * np.arctan2(difference, total))
    return np.where((a_norm * b_norm)[..., 0] > 0, degrees, np.nan)


def effective_rank(x_LD: np.ndarray) -> float:
    """exp(entropy of the singular values, as shares) (Roy and Vetterli 2007).

    From 1, all states on a line through 0, to min(L, D).
    """
    singular = np.linalg.svd(x_LD, compute_uv=False)
    share = singular[singular > 0] / singular.sum()
    return float(np.exp(-(share * np.log(share)).sum()))


# Of each figure over depth: its axis, and which of the times it belongs to.
_FIGURES = {
    "norm": ("|x|", slice(None)),
    "speed": ("step / its length in time", slice(1, None)),
    "angle": ("angle to the next step (degrees)", slice(1, -1)),
    "effective_rank": ("effective rank of the tokens' states", slice(None)),
    "deviation": ("distance from the straight line", slice(None)),
}


def analyze(trained, folder: Path, *, sentences) -> list[dict]:
    """Writes trajectory.json (per token and averaged) and trajectory.png."""
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
