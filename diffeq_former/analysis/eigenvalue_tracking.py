"""Eigenvalues followed over time, and how far they jump between neighbouring times.

If W(t) is continuous, so are its eigenvalues, and their jumps vanish with the spacing
of the times. At one spacing a jump says little: the spectra of unrelated matrices of
the same size are close as well. So jumps are measured over many spacings.

T times, N heads, M eigenvalues of a head.
"""

import numpy as np
from scipy.optimize import linear_sum_assignment

from diffeq_former.analysis import spectra

NAMES = ("qk", "ov")
NUM_HALVINGS = 10  # of the grid's spacing
# A path is straight where its linear continuation erred by less than this fraction of
# its last movement, as smooth paths do at small spacings.
STRAIGHT = 0.1


def match(before_M: np.ndarray, after_M: np.ndarray) -> np.ndarray:
    """Return `after_M` in the order that minimises the total distance to `before_M`."""
    return after_M[linear_sum_assignment(np.abs(before_M[:, None] - after_M))[1]]


def track(values_TM: np.ndarray) -> np.ndarray:
    """Order the eigenvalues at each time such that each column is one path [T, M].

    Neighbouring times are matched by the least total distance to predictions: the
    value before or, where the path is `STRAIGHT`, its linear continuation. Without the
    latter, paths that cross would bounce off each other.
    """
    paths_TM = np.array(values_TM)
    for t in range(1, len(paths_TM)):
        predicted_M = paths_TM[t - 1]
        if t > 2:
            x_M, y_M, z_M = paths_TM[t - 3 : t]
            error_M, moved_M = np.abs(z_M - (2 * y_M - x_M)), np.abs(z_M - y_M)
            is_straight_M = error_M < STRAIGHT * moved_M
            predicted_M = np.where(is_straight_M, 2 * z_M - y_M, z_M)
        paths_TM[t] = match(predicted_M, paths_TM[t])
    return paths_TM


def largest_jumps(before_TNM: np.ndarray, after_TNM: np.ndarray) -> np.ndarray:
    """Return the largest distance between matched eigenvalues [T, N]."""
    found_TN = np.empty(before_TNM.shape[:-1])
    for index in np.ndindex(*found_TN.shape):
        before_M, after_M = before_TNM[index], after_TNM[index]
        found_TN[index] = np.abs(match(before_M, after_M) - before_M).max()
    return found_TN


def jumps(model) -> list[dict]:
    """Measure the jumps of the eigenvalues of QK and OV, over several spacings.

    Spacings are 1, 2, 4, ... steps of the model's grid and, if it has weights between
    its times, a half, a quarter, ... of a step. In the latter, each time of the grid
    but the first is compared with one shortly before, so that all are within the range
    of the grid.

    Args:
      model: A `LoadedModel`.

    Returns:
      For each spacing, the smallest first: the spacing in `steps` of the grid and as a
      fraction of depth (`spacing`), and for `qk` and `ov` the `mean` and the `largest`
      over times and heads of `largest_jumps`, relative to the head's largest
      |eigenvalue| on the grid.
    """
    times_T = model.times(None)
    on_grid = _eigenvalues(model, times_T)
    scale = {name: np.abs(x).max((0, 2)) for name, x in on_grid.items()}

    def measure(steps: float, spacing: float, before: dict, after: dict) -> dict:
        found = {"steps": steps, "spacing": float(spacing)}
        for name in NAMES:
            relative_TN = largest_jumps(before[name], after[name]) / scale[name]
            found[name] = {"mean": relative_TN.mean(), "largest": relative_TN.max()}
        return found

    found, last = [], {name: x[1:] for name, x in on_grid.items()}
    if len(times_T) > 1 and model.is_continuous:
        for halvings in range(NUM_HALVINGS, 0, -1):
            spacing = (times_T[1] - times_T[0]) / 2**halvings
            before = _eigenvalues(model, times_T[1:] - spacing)
            found.append(measure(0.5**halvings, spacing, before, last))
    for lag in (2**i for i in range((len(times_T) - 1).bit_length())):
        before = {name: x[:-lag] for name, x in on_grid.items()}
        after = {name: x[lag:] for name, x in on_grid.items()}
        spacing = (times_T[lag:] - times_T[:-lag]).mean()
        found.append(measure(lag, spacing, before, after))
    return found


def _eigenvalues(model, times_T: np.ndarray) -> dict[str, np.ndarray]:
    products = spectra.attention_products(model.config, model.weights_at(times_T))
    return {name: spectra.eigenvalues(products[name]) for name in NAMES}
