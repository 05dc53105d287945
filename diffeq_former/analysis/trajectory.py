"""The geometry of the trajectories of states over depth.

L sequence length, D model width, T grid steps.
"""

from pathlib import Path

import numpy as np

from diffeq_former.analysis import plotting
from diffeq_former.analysis.loaded_model import depths, sentence_states
from diffeq_former.analysis.plotting import plot_over_depth
from diffeq_former.analysis.results import write_json
from diffeq_former.analysis.statistics import interval, over_sentences


def describe(states_TLD: np.ndarray, interval: float) -> dict[str, np.ndarray]:
    """Describe the trajectories of a sequence's tokens.

    Args:
      states_TLD: T + 1 states at equally spaced times, from the first to the last.
      interval: Length of the depth interval, in units of time.

    Returns:
      Arrays by name:
      `norm` [T + 1, L]: |x|.
      `speed` [T, L]: |x_k+1 - x_k| / h.
      `angle` [T - 1, L]: Between consecutive steps in degrees; NaN if one is zero.
      `effective_rank` [T + 1]: Of the tokens' states, see `effective_rank`.
      `deviation` [T + 1, L]: |x - (straight line from first to last at this time)|.
      `cost` [L]: Integral of |dx/dt|^2, the kinetic cost of optimal transport.
      `least_cost` [L]: Cost of the straight line at constant speed, the lowest between
        these endpoints (Benamou and Brenier 2000).
    """
    x = np.asarray(states_TLD, float)
    steps = np.diff(x, axis=0)
    T = len(steps)
    h = interval / T
    fraction = np.linspace(0, 1, T + 1)[:, None, None]
    straight = (1 - fraction) * x[:1] + fraction * x[-1:]
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
    """Return the angles between vectors along the last axis in degrees; NaN for zero.

    Kahan's formula, from differences and sums of the directions, is also accurate near
    0 and 180 degrees.
    """
    a_norm, b_norm = (np.linalg.norm(v, axis=-1, keepdims=True) for v in (a, b))
    a, b = a * b_norm, b * a_norm
    difference, total = (np.linalg.norm(v, axis=-1) for v in (a - b, a + b))
    degrees = np.degrees(2 * np.arctan2(difference, total))
    return np.where((a_norm * b_norm)[..., 0] > 0, degrees, np.nan)


def effective_rank(x_LD: np.ndarray) -> float:
    """Return exp(entropy of the normalised singular values) (Roy and Vetterli 2007).

    It ranges from 1, for states on a line through 0, to min(L, D).
    """
    singular = np.linalg.svd(x_LD, compute_uv=False)
    share = singular[singular > 0] / singular.sum()
    return float(np.exp(-(share * np.log(share)).sum()))


# The axis label of each metric over depth, and the times at which it is defined.
_METRICS = {
    "norm": ("|x|", slice(None)),
    "speed": ("|step| / h", slice(1, None)),
    "angle": ("angle to the next step (degrees)", slice(1, -1)),
    "effective_rank": ("effective rank of the tokens' states", slice(None)),
    "deviation": ("distance from the straight line", slice(None)),
}


def analyze(trained, folder: Path, *, sentences) -> list[dict]:
    """Write trajectory.json (per token and averaged) and trajectory.png."""
    horizon = trained.config.interval
    metrics = [describe(sentence_states(trained, s), horizon) for s in sentences]
    over_depth = {
        name: over_sentences([_over_tokens(d[name]) for d in metrics])
        for name in _METRICS
    }
    excess = [float((d["cost"] / d["least_cost"]).mean()) for d in metrics]
    summary = {
        "transport cost": interval([d["cost"].mean() for d in metrics]),
        "transport cost, least": interval([d["least_cost"].mean() for d in metrics]),
        "transport cost, times the least": interval(excess),
    }
    times = depths(trained)
    measured = [
        {"text": s.text, "tokens": s.tokens, **d}
        for s, d in zip(sentences, metrics, strict=True)
    ]
    numbers = {"interval": horizon, "times": times, "summary": summary}
    numbers |= {"mean": over_depth, "sentences": measured}
    write_json(folder / "trajectory.json", numbers)
    _plot(folder / "trajectory.png", times, over_depth, excess)
    return [{"measure": name} | values for name, values in summary.items()]


def _over_tokens(values: np.ndarray) -> np.ndarray:
    """Average the finite values over tokens; values without a token axis are kept."""
    if values.ndim == 1:
        return values
    known = np.isfinite(values)
    counts = known.sum(1)
    sums = np.where(known, values, 0).sum(1)
    return np.divide(sums, counts, out=np.full(len(values), np.nan), where=counts > 0)


def _plot(path: Path, times, over_depth: dict, excess: list[float]) -> None:
    with plotting.saved_figure(path, (12, 7), nrows=2, ncols=3) as grid:
        *panels, last = grid.flat
        for axes, (name, (label, at_times)) in zip(
            panels, _METRICS.items(), strict=True
        ):
            statistics = over_depth[name]
            mean = [np.nan if x is None else x for x in statistics["mean"]]
            plot_over_depth(axes, times[at_times], mean, statistics)
            axes.set_ylabel(label)
        panels[0].legend()
        last.hist(excess, bins=min(20, 1 + len(excess)), color="0.6", edgecolor="black")
        last.set(xlabel="transport cost / that of a straight line", ylabel="sentences")
        last.grid(alpha=0.3)
