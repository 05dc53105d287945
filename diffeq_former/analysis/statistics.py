"""Statistics over many sentences, and over a few seeds."""

import numpy as np
from scipy.special import stdtr, stdtrit  # JAX requires SciPy

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


def proportion(successes) -> dict[str, float | int | None]:
    """Return the share of true values, with its 95 % Wilson score interval (1927).

    Unlike a bootstrap interval, it has a width even if all values are equal. The fields
    are those of `interval`.
    """
    successes = np.asarray(successes, bool)
    share, n, z = successes.mean(), len(successes), 1.959964
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    spread = share * (1 - share) / n + (z / (2 * n)) ** 2
    half = z * np.sqrt(spread) / (1 + z**2 / n)
    low, high = float(max(0, centre - half)), float(min(1, centre + half))
    return {"mean": float(share), "low": low, "high": high, "count": n}


def paired_difference(a, b) -> dict[str, float | int | None]:
    """Return the mean of a - b, with its 95 % interval and two-sided p value.

    Both are by Student's t (1908), which takes the differences of the pairs to be
    normally distributed. With one pair, `low`, `high` and `p_value` are None.
    """
    differences = np.subtract(a, b, dtype=float)
    n, mean = len(differences), float(differences.mean())
    found = {"mean": mean, "low": None, "high": None, "p_value": None, "count": n}
    if n == 1:
        return found
    error = differences.std(ddof=1) / np.sqrt(n)
    half = float(stdtrit(n - 1, 0.975) * error)
    p = 2 * stdtr(n - 1, -abs(mean) / error) if error else mean == 0
    return found | {"low": mean - half, "high": mean + half, "p_value": float(p)}


def rank_correlation(a, b) -> float:
    """Return Spearman's rank correlation; NaN if all values of one are equal."""
    ranks = [_ranks(np.asarray(values)) for values in (a, b)]
    x, y = (r - r.mean() for r in ranks)
    norm = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / norm) if norm else float("nan")


def correlation_interval(a, b) -> dict[str, float | int | None]:
    """Return the rank correlation, with a 95 % bootstrap interval over the pairs.

    All are None if all values of `a` or of `b` are equal.
    """
    a, b = np.asarray(a, float), np.asarray(b, float)
    found = dict.fromkeys(("rank_correlation", "low", "high")) | {"count": len(a)}
    if np.isnan(correlation := rank_correlation(a, b)):
        return found
    rows = np.random.default_rng(0).integers(len(a), size=(_RESAMPLES, len(a)))
    resampled = [rank_correlation(a[row], b[row]) for row in rows]
    low, high = np.nanpercentile(resampled, (2.5, 97.5)).tolist()
    return found | {"rank_correlation": correlation, "low": low, "high": high}


def _ranks(values: np.ndarray) -> np.ndarray:
    """Rank values from 0; ties get the mean of their ranks."""
    ordered = np.sort(values)
    below = np.searchsorted(ordered, values, "left")
    return (below + np.searchsorted(ordered, values, "right") - 1) / 2


def over_sentences(values: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Return the mean and 95 % confidence interval over sentences at each time."""
    found = [interval(at_time) for at_time in np.array(values).T]
    return {key: [x[key] for x in found] for key in ("mean", "low", "high")}
