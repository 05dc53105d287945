"""Statistics over many sentences."""

import numpy as np

_RESAMPLES = 2000


def interval(values) -> dict[str, float | int | None]:
    """Return the mean of the finite values, with a 95 % bootstrap interval.

    `mean` is None without finite values, `low` and `high` with fewer than two.
    """
    values = np.asarray(values, float)
    values = values[np.isfinite(values)]
    if not len(values):
        return {"mean": None, "low": None, "high": None, "count": 0}
    low = high = None
    if len(values) > 1:
        resampled = np.random.default_rng(0).choice(values, (_RESAMPLES, len(values)))
        low, high = np.percentile(resampled.mean(1), (2.5, 97.5)).tolist()
    mean = float(values.mean())
    return {"mean": mean, "low": low, "high": high, "count": len(values)}


def rank_correlation(a, b) -> float:
    """Return Spearman's rank correlation; NaN if all values of one are equal."""
    ranks = [_ranks(np.asarray(values)) for values in (a, b)]
    x, y = (r - r.mean() for r in ranks)
    norm = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / norm) if norm else float("nan")


def _ranks(values: np.ndarray) -> np.ndarray:
    """Rank values from 0; ties get the mean of their ranks."""
    below = (values[:, None] > values[None]).sum(1)
    equal = (values[:, None] == values[None]).sum(1)
    return below + (equal - 1) / 2


def over_sentences(values: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Return the mean and 95 % confidence interval over sentences at each time."""
    found = [interval(at_time) for at_time in np.array(values).T]
    return {key: [x[key] for x in found] for key in ("mean", "low", "high")}
