"""The shape of the way that states take through depth.

L length, D model, T grid steps.
"""

import numpy as np


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
