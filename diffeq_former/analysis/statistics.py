"""Figures over many sentences."""

import numpy as np

_DRAWS = 2000


def interval(values) -> dict[str, float | int | None]:
    """The mean, and its 95 % confidence interval by the bootstrap.

    Of values that are finite; `low` and `high` are None where fewer than two are.
    """
    values = np.asarray(values, float)
    values = values[np.isfinite(values)]
    if not len(values):
        return {"mean": None, "low": None, "high": None, "count": 0}
    low = high = None
    if len(values) > 1:
        drawn = np.random.default_rng(0).choice(values, (_DRAWS, len(values)))
        low, high = np.percentile(drawn.mean(1), (2.5, 97.5)).tolist()
    mean = float(values.mean())
    return {"mean": mean, "low": low, "high": high, "count": len(values)}


def rank_correlation(a, b) -> float:
    """Spearman's: that of the ranks; NaN where all of one are equal."""
    ranks = [_ranks(np.asarray(values)) for values in (a, b)]
    x, y = (r - r.mean() for r in ranks)
    norm = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / norm) if norm else float("nan")


def _ranks(values: np.ndarray) -> np.ndarray:
    """From 0; equal values share the mean of theirs."""
    below = (values[:, None] > values[None]).sum(1)
    equal = (values[:, None] == values[None]).sum(1)
    return below + (equal - 1) / 2


def over_sentences(values: list[np.ndarray]) -> dict[str, np.ndarray]:
    """The mean over sentences at each time, and its 95 % confidence interval."""
    found = [interval(at_time) for at_time in np.array(values).T]
    return {key: [x[key] for x in found] for key in ("mean", "low", "high")}
