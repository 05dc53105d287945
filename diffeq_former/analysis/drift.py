"""Drift of the representations over depth.

N tokens of any sequences, D model width, T grid steps.
"""

import numpy as np

from diffeq_former.analysis.trajectory import directions, effective_rank

_ROUNDED = 8 * np.finfo(np.float32).eps


def describe(states_TND: np.ndarray) -> dict[str, np.ndarray]:
    """Compare the T + 1 states of a pass over depth; NaN where states are not finite.

    Returns:
      Arrays by name:
      `cosine_step` [T], `cka_step` [T]: Between consecutive states.
      `cosine_input` [T + 1], `cka_input` [T + 1]: Between the first state and each.
      `effective_rank` [T + 1]: See trajectory.py.
      `norm` [T + 1]: Root mean square of |x| over tokens.
    """
    x = np.asarray(states_TND, float)
    x = np.where(np.isfinite(x).all((1, 2), keepdims=True), x, np.nan)
    first, after = x[:1].repeat(len(x), 0), x[1:]
    pairs = {"step": (x[:-1], after), "input": (first, x)}
    metrics = {}
    for name, (a, b) in pairs.items():
        both = list(zip(a, b, strict=True))
        metrics[f"cosine_{name}"] = np.array([cosine(*pair) for pair in both])
        metrics[f"cka_{name}"] = np.array([linear_cka(*pair) for pair in both])
    metrics["effective_rank"] = np.array([_rank(x_ND) for x_ND in x])
    metrics["norm"] = np.sqrt(np.square(x).sum(-1).mean(-1))
    return metrics


def cosine(a_ND: np.ndarray, b_ND: np.ndarray) -> float:
    """Return the mean over tokens of the cosine similarity; 0 for zero states."""
    a, b = directions(a_ND), directions(b_ND)
    return float((a * b).sum(-1).mean())


def linear_cka(a_ND: np.ndarray, b_ND: np.ndarray) -> float:
    """Return the linear centred kernel alignment, 0 to 1 (Kornblith et al. 2019).

    |A^T B|^2 / (|A^T A| |B^T B|) with centred tokens and Frobenius norms. It is 1 if B
    is A rotated, scaled and shifted; 0 if no direction of one is correlated with any of
    the other, or if all tokens of one are the same.
    """
    if not (np.isfinite(a_ND).all() and np.isfinite(b_ND).all()):
        return float("nan")
    a, b = (_centred(x) for x in (a_ND, b_ND))
    if not (a.any() and b.any()):
        return 0.0
    size = np.linalg.norm(a.T @ a) * np.linalg.norm(b.T @ b)
    return float(np.square(a.T @ b).sum() / size)


def _centred(x_ND: np.ndarray) -> np.ndarray:
    """Subtract the mean and scale the largest entry to 1, so that squares are finite.

    Differences within float32 rounding error of the states count as zero.
    """
    centred = x_ND - x_ND.mean(0)
    largest = np.abs(centred).max()
    if largest <= _ROUNDED * np.abs(x_ND).max():
        return 0 * centred
    return centred / largest


def _rank(x_ND: np.ndarray) -> float:
    return effective_rank(x_ND) if np.isfinite(x_ND).all() else float("nan")
