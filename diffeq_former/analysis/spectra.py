"""Eigenvalues and singular values of the linear maps in a block.

A product A B of [D, R] and [R, D] has the nonzero eigenvalues of B A, which is [R, R]
and small where R is the head size. Eigenvalues are complex. Only weight matrices
count: biases, norms (of queries and keys, too) and rotary positions are omitted.

T times, N heads, D model width, H head size, R inner width of a product,
M = min(D, R) eigenvalues.
"""

import numpy as np

from diffeq_former.config import ModelConfig

Factors = tuple[np.ndarray, np.ndarray]  # A [..., D, R] and B [..., R, D]


def products(c: ModelConfig, weights: dict) -> dict[str, Factors]:
    """Return the factors of QK^T / sqrt(H), of OV and of the feed-forward product.

    States are row vectors: x_i attends to x_j with the score x_i (QK^T) x_j^T, and a
    head adds x_j (OV). Llama's feed-forward product is that of `up` and `down`.

    Args:
      c: The model's config.
      weights: Weights by name, with a leading axis T.

    Returns:
      The factors by name: `qk` and `ov` with leading axes [T, N], `ff` with [T].
    """
    names = ("ff_in", "ff_out") if c.block == "gpt" else ("up", "down")
    first, second = _exact(weights, names)
    return attention_products(c, weights) | {"ff": (first, second)}


def attention_products(c: ModelConfig, weights: dict) -> dict[str, Factors]:
    """Return `qk` and `ov` of `products`, which need only `attention_names`."""
    *q_k_v, o_TNHD = _exact(weights, attention_names(c))
    if c.block == "gpt":
        q_k_v = np.moveaxis(q_k_v[0], 2, 0)
    q_TNDH, k_TNDH, v_TNDH = (_by_head(c, x_TDKH) for x_TDKH in q_k_v)
    return {
        "qk": (q_TNDH * c.head_size**-0.5, np.swapaxes(k_TNDH, -1, -2)),
        "ov": (v_TNDH, o_TNHD),
    }


def attention_names(c: ModelConfig) -> tuple[str, ...]:
    """Return the names of attention's linear maps, the output projection last."""
    inner = ("qkv",) if c.block == "gpt" else ("query", "key", "value")
    return (*inner, "attention_out")


def eigenvalues(factors: Factors) -> np.ndarray:
    """Return a product's M eigenvalues, complex128 [..., M], largest magnitude first.

    If M < D, the remaining D - M eigenvalues are zero.
    """
    a, b = factors
    small = b @ a if a.shape[-1] < a.shape[-2] else a @ b
    found = np.linalg.eigvals(small).astype(complex)
    order = np.argsort(-np.abs(found), axis=-1, kind="stable")
    return np.take_along_axis(found, order, axis=-1)


def singular_values(factors: Factors) -> np.ndarray:
    """Return a product's M singular values [..., M], the largest first."""
    a, b = factors
    if a.shape[-1] < a.shape[-2]:
        left, right = np.linalg.qr(a, "r"), np.linalg.qr(np.swapaxes(b, -1, -2), "r")
        return np.linalg.svd(left @ np.swapaxes(right, -1, -2), compute_uv=False)
    return np.linalg.svd(a @ b, compute_uv=False)


def positive_share(eigenvalues: np.ndarray) -> np.ndarray:
    """Return the share of eigenvalues with a positive real part [...].

    For OV it indicates copying, for QK attraction.
    """
    return (eigenvalues.real > 0).mean(-1)


def signed_sum(eigenvalues: np.ndarray) -> np.ndarray:
    """Return sum(lambda) / sum(|lambda|) [...], in [-1, 1]; 0 if all are zero.

    For OV it is the measure of copying of Elhage et al. (2021, "A mathematical
    framework for transformer circuits"). The sum is real, as eigenvalues come in
    conjugate pairs.
    """
    total = np.abs(eigenvalues).sum(-1)
    return eigenvalues.sum(-1).real / np.where(total > 0, total, 1)


BANDS = (0, 5, 25, 50, 75, 95, 100)  # percentiles


def bands(values_TM: np.ndarray) -> np.ndarray:
    """Return the percentiles `BANDS` at each time [len(BANDS), T]."""
    return np.percentile(values_TM.reshape(len(values_TM), -1), BANDS, axis=-1)


def _exact(weights: dict, names: tuple[str, ...]) -> list[np.ndarray]:
    return [np.asarray(weights[name]["kernel"], float) for name in names]


def _by_head(c: ModelConfig, kernel_TDKH: np.ndarray) -> np.ndarray:
    """Return a kernel per head [T, N, D, H], repeating shared key-value heads."""
    shared = c.num_heads // kernel_TDKH.shape[2]
    return np.swapaxes(np.repeat(kernel_TDKH, shared, axis=2), 1, 2)
