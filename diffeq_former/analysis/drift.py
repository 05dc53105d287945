"""How far representations move on their way through depth.

N tokens of any sequences, D model, T grid steps.
"""

import numpy as np

from diffeq_former.analysis.trajectory import effective_rank

_ROUNDED = 8 * np.finfo(np.float32).eps


def describe(states_TND: np.ndarray) -> dict[str, np.ndarray]:
    """Figures of T + 1 states, the first and the last of depth; NaN if not finite.

    Returns:
      `cosine_step` [T], `cka_step` [T]: between one state and the next.
      `cosine_input` [T + 1], `cka_input` [T + 1]: between the first and each.
      `effective_rank` [T + 1]: see trajectory.py.
      `norm` [T + 1]: the root mean square of |x| over tokens.
    """
    x = np.asarray(states_TND, float)
    x = np.where(np.isfinite(x).all((1, 2), keepdims=True), x, np.nan)
    first, after = x[:1].repeat(len(x), 0), x[1:]
    pairs = {"step": (x[:-1], after), "input": (first, x)}
    figures = {}
    for name, (a, b) in pairs.items():
        both = list(zip(a, b, strict=True))
        figures[f"cosine_{name}"] = np.array([cosine(*pair) for pair in both])
        figures[f"cka_{name}"] = np.array([linear_cka(*pair) for pair in both])
    figures["effective_rank"] = np.array([_rank(x_ND) for x_ND in x])
    figures["norm"] = np.sqrt(np.square(x).sum(-1).mean(-1))
    return figures


def cosine(a_ND: np.ndarray, b_ND: np.ndarray) -> float:
    """Of the angle between a token's two states, mean over tokens; 0 where one is 0."""
    a, b = directions(a_ND), directions(b_ND)
    return float((a * b).sum(-1).mean())


def linear_cka(a_ND: np.ndarray, b_ND: np.ndarray) -> float:
    """Linear centred kernel alignment (Kornblith et al. 2019), from 0 to 1.

    |A^T B|^2 / (|A^T A| |B^T B|), with means over tokens taken off, and Frobenius
    norms. 1 if B is A turned, scaled and shifted; 0 if no direction of one is
    correlated with any of the other, and if all tokens of one are the same.
    """
    if not (np.isfinite(a_ND).all() and np.isfinite(b_ND).all()):
        return float("nan")
    a, b = (_centred(x) for x in (a_ND, b_ND))
    if not (a.any() and b.any()):
        return 0.0
    size = np.linalg.norm(a.T @ a) * np.linalg.norm(b.T @ b)
    return float(np.square(a.T @ b).sum() / size)


def directions(x_ND: np.ndarray) -> np.ndarray:
    """Vectors of length 1, x / |x|; zero stays zero."""
    x_ND = np.asarray(x_ND, float)
    lengths = np.linalg.norm(x_ND, axis=-1, keepdims=True)
    return x_ND / np.where(lengths == 0, 1, lengths)


def _centred(x_ND: np.ndarray) -> np.ndarray:
    """Without the mean, and with the largest entry 1: no square leaves the floats.

    What float32 may have rounded beside the mean is no difference of tokens.
    """
    centred = x_ND - x_ND.mean(0)
    largest = np.abs(centred).max()
    if largest <= _ROUNDED * np.abs(x_ND).max():
        return 0 * centred
    return centred / largest


def _rank(x_ND: np.ndarray) -> float:
    return effective_rank(x_ND) if np.isfinite(x_ND).all() else float("nan")
