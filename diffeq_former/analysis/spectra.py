"""Eigenvalues and singular values of what a block's weights do to a state.

A product A B of [D, R] and [R, D] has the nonzero eigenvalues of B A, which is [R, R]:
small where R is the width of a head. Eigenvalues are complex and stay so. Of weights
alone: biases, norms and rotary positions are left out.

T times, N heads, D model, H head, F feed-forward, R inner width of a product, M its
eigenvalues: the smaller of D and R.
"""

import numpy as np

from diffeq_former.config import ModelConfig

Factors = tuple[np.ndarray, np.ndarray]  # A [..., D, R] and B [..., R, D]


def products(c: ModelConfig, weights: dict) -> dict[str, Factors]:
    """The factors of QK^T / sqrt(H), of OV and of the feed-forward product.

    For states as rows: a state x_i attends to x_j by x_i (QK^T) x_j^T, and a head adds
    x_j (OV). Llama's feed-forward product is that of `up` and `down`.

    Args:
      c: the model.
      weights: units with a leading axis T.

    Returns:
      `qk` and `ov`: with leading axes [T, N]; `ff`: with [T].
    """
    names = ("ff_in", "ff_out") if c.block == "gpt" else ("up", "down")
    first, second = _exact(weights, names)
    return attention_products(c, weights) | {"ff": (first, second)}


def attention_products(c: ModelConfig, weights: dict) -> dict[str, Factors]:
    """Of `products`, those that need `attention_units` alone."""
    *q_k_v, o_TNHD = _exact(weights, attention_units(c))
    if c.block == "gpt":
        q_k_v = np.moveaxis(q_k_v[0], 2, 0)
    q_TNDH, k_TNDH, v_TNDH = (_by_head(c, x_TDKH) for x_TDKH in q_k_v)
    return {
        "qk": (q_TNDH * c.head_dim**-0.5, np.swapaxes(k_TNDH, -1, -2)),
        "ov": (v_TNDH, o_TNHD),
    }


def attention_units(c: ModelConfig) -> tuple[str, ...]:
    """The linear maps of attention, the one at its end last."""
    inner = ("qkv",) if c.block == "gpt" else ("query", "key", "value")
    return (*inner, "attention_out")


def eigenvalues(factors: Factors) -> np.ndarray:
    """Of a product, complex128 [..., M], the largest first; further ones are zero."""
    a, b = factors
    small = b @ a if a.shape[-1] < a.shape[-2] else a @ b
    found = np.linalg.eigvals(small).astype(complex)
    order = np.argsort(-np.abs(found), axis=-1, kind="stable")
    return np.take_along_axis(found, order, axis=-1)


def singular_values(factors: Factors) -> np.ndarray:
    """Of a product, [..., M], the largest first; further ones are zero."""
    a, b = factors
    if a.shape[-1] < a.shape[-2]:
        left, right = np.linalg.qr(a, "r"), np.linalg.qr(np.swapaxes(b, -1, -2), "r")
        return np.linalg.svd(left @ np.swapaxes(right, -1, -2), compute_uv=False)
    return np.linalg.svd(a @ b, compute_uv=False)


def positive_share(eigenvalues: np.ndarray) -> np.ndarray:
    """The share with a positive real part, [...]: of OV copying, of QK attraction."""
    return (eigenvalues.real > 0).mean(-1)


BANDS = (0, 5, 25, 50, 75, 95, 100)  # percent of the values


def bands(values_TM: np.ndarray) -> np.ndarray:
    """The percentiles `BANDS` at each time, [len(BANDS), T]."""
    return np.percentile(values_TM.reshape(len(values_TM), -1), BANDS, axis=-1)


def _exact(weights: dict, names: tuple[str, ...]) -> list[np.ndarray]:
    return [np.asarray(weights[name]["kernel"], float) for name in names]


def _by_head(c: ModelConfig, kernel_TDKH: np.ndarray) -> np.ndarray:
    """[T, N, D, H]: heads that share a key and a value get it each."""
    shared = c.num_heads // kernel_TDKH.shape[2]
    return np.swapaxes(np.repeat(kernel_TDKH, shared, axis=2), 1, 2)
