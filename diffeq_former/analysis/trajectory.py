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


def describe(states_TLD: np.ndarray, times_T: np.ndarray) -> dict[str, np.ndarray]:
    """Describe the trajectories of a sequence's tokens.

    Args:
      states_TLD: T + 1 states, from the first to the last.
      times_T: Their times, of which the first is 0.

    Returns:
      Arrays by name:
      `norm` [T + 1, L]: |x|.
      `speed` [T, L]: |x_k+1 - x_k| / h, with the length h of the step.
      `angle` [T - 1, L]: Between consecutive steps in degrees; NaN if one is zero.
      `effective_rank` [T + 1]: Of the tokens' states, see `effective_rank`.
      `deviation` [T + 1, L]: |x - (straight line from first to last at this time)|.
      `cost` [L]: Integral of |dx/dt|^2, the kinetic cost of optimal transport.
      `least_cost` [L]: Cost of the straight line at constant speed, the lowest between
        these endpoints (Benamou and Brenier 2000).
      `energy` [T + 1]: Interaction energy, as a fraction of `MAX_ENERGY`.
    """
    x = np.asarray(states_TLD, float)
    steps = np.diff(x, axis=0)
    h, interval = np.diff(times_T)[:, None], times_T[-1]
    fraction = (times_T / interval)[:, None, None]
    straight = (1 - fraction) * x[:1] + fraction * x[-1:]
    return {
        "norm": np.linalg.norm(x, axis=-1),
        "speed": np.linalg.norm(steps, axis=-1) / h,
        "angle": angles(steps[:-1], steps[1:]),
        "effective_rank": np.array([effective_rank(x_LD) for x_LD in x]),
        "deviation": np.linalg.norm(x - straight, axis=-1),
        "cost": (np.square(steps).sum(-1) / h).sum(0),
        "least_cost": np.square(x[-1] - x[0]).sum(-1) / interval,
        "energy": interaction_energy(x) / MAX_ENERGY,
    }


def directions(x_ND: np.ndarray) -> np.ndarray:
    """Normalise vectors to unit length, x / |x|; zero vectors stay zero."""
    x_ND = np.asarray(x_ND, float)
    lengths = np.linalg.norm(x_ND, axis=-1, keepdims=True)
    return x_ND / np.where(lengths == 0, 1, lengths)


MAX_ENERGY = np.e / 2  # of `interaction_energy` with beta = 1: all directions coincide


def interaction_energy(x_LD: np.ndarray, beta: float = 1.0) -> np.ndarray:
    """Return the interaction energy of the tokens' directions u_i = x_i / |x_i| [...].

    E = sum_ij exp(beta <u_i, u_j>) / (2 beta L^2), at most exp(beta) / (2 beta). On the
    sphere, attention with the scores beta <u_i, u_j> and values u_j moves each token
    along the gradient of E, so that E increases (Geshkovski et al., arXiv 2312.10794,
    section 3.3). Any other attention may also decrease it.

    Args:
      x_LD: States, with any leading axes.
      beta: Inverse temperature.
    """
    u_LD = directions(x_LD)
    cosines_LL = u_LD @ np.swapaxes(u_LD, -1, -2)
    return np.exp(beta * cosines_LL).mean((-1, -2)) / (2 * beta)


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
    "energy": ("interaction energy / its maximum", slice(None)),
}


def analyze(trained, folder: Path, *, sentences) -> list[dict]:
    """Write trajectory.json (per token and averaged) and trajectory.png."""
    horizon = trained.config.interval
    times = depths(trained)
    metrics = [
        describe(sentence_states(trained, s), horizon * times) for s in sentences
    ]
    over_depth = {
        name: over_sentences([_over_tokens(d[name]) for d in metrics])
        for name in _METRICS
    }
    excess = [float((d["cost"] / d["least_cost"]).mean()) for d in metrics]
    summary = {
        "transport cost": interval([d["cost"].mean() for d in metrics]),
        "transport cost, least": interval([d["least_cost"].mean() for d in metrics]),
        "transport cost, times the least": interval(excess),
        "interaction energy, at first": interval([d["energy"][0] for d in metrics]),
        "interaction energy, at the end": interval([d["energy"][-1] for d in metrics]),
    }
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
    has_histogram = len(excess) > 1
    columns = 4 if has_histogram else 3
    with plotting.saved_figure(path, (4 * columns, 7), nrows=2, ncols=columns) as grid:
        panels = grid.flat
        for axes, (name, (label, at_times)) in zip(
            panels, _METRICS.items(), strict=False
        ):
            statistics = over_depth[name]
            mean = [np.nan if x is None else x for x in statistics["mean"]]
            plot_over_depth(axes, times[at_times], mean, statistics)
            axes.set_ylabel(label)
        panels[0].legend()
        if has_histogram:
            axes = panels[len(_METRICS)]
            bins = min(20, 1 + len(excess))
            axes.hist(excess, bins=bins, color="0.6", edgecolor="black")
            label = "transport cost / that of a straight line"
            axes.set(xlabel=label, ylabel="sentences")
            plotting.integer_ticks(axes.yaxis)
            axes.grid(alpha=0.3)
            panels[-1].remove()
