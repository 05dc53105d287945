"""Causal attention that never holds the whole score matrix, for CPUs.

Queries are divided into blocks, each of which attends to the keys up to its own end,
which halves the work. The backward pass recomputes the probabilities from the log of
their normaliser, as in FlashAttention (Dao et al., 2022, algorithm 4).

B batch, L length, Q queries of a block, S keys up to its end, N heads, K key-value
heads, G heads that share keys and values, H head size.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp

from diffeq_former.models.remat import ATTENTION_OUTPUT, named

BLOCKS = 4  # fewer skip less of the matrix, more are smaller products


def blockwise(
    q_BLNH: jax.Array,
    k_BLKH: jax.Array,
    v_BLKH: jax.Array,
    segments_BL: jax.Array | None,
) -> jax.Array:
    """Return o_BLNH of causal attention within segments (None: one for all tokens)."""
    if segments_BL is None:
        return _attend(q_BLNH, k_BLKH, v_BLKH, None)
    # A custom gradient takes no integers.
    return _attend(q_BLNH, k_BLKH, v_BLKH, segments_BL.astype(jnp.float32))


@jax.custom_vjp
def _attend(q_BLNH, k_BLKH, v_BLKH, segments_BL):
    return _forward(q_BLNH, k_BLKH, v_BLKH, segments_BL)[0]


def _forward(q_BLNH, k_BLKH, v_BLKH, segments_BL):
    q_BKGLH, k_BKLH, v_BKLH = _heads_first(q_BLNH, k_BLKH, v_BLKH)
    outputs, normalisers = [], []
    for start, end in _blocks(q_BLNH.shape[1]):
        scores = _scores(q_BKGLH, k_BKLH, segments_BL, start, end)
        highest = scores.max(-1, keepdims=True)
        weights = jnp.exp(scores - highest)
        sums = weights.sum(-1, keepdims=True)
        values = _product("bkgqs,bksh->bkgqh", weights, v_BKLH[:, :, :end])
        outputs.append(values / sums)
        normalisers.append(highest + jnp.log(sums))
    o_BLNH = _heads_last(jnp.concatenate(outputs, 3)).astype(q_BLNH.dtype)
    log_z_BKGL1 = jnp.concatenate(normalisers, 3)
    saved = named(ATTENTION_OUTPUT, (o_BLNH, log_z_BKGL1))
    return saved[0], (q_BLNH, k_BLKH, v_BLKH, segments_BL, *saved)


def _backward(saved, do_BLNH):
    q_BLNH, k_BLKH, v_BLKH, segments_BL, o_BLNH, log_z_BKGL1 = saved
    q_BKGLH, k_BKLH, v_BKLH = _heads_first(q_BLNH, k_BLKH, v_BLKH)
    do_BKGLH, o_BKGLH = (_grouped(x, k_BLKH.shape[2]) for x in (do_BLNH, o_BLNH))
    inner_BKGL1 = (do_BKGLH * o_BKGLH).astype(log_z_BKGL1.dtype).sum(-1, keepdims=True)
    scale, L = q_BLNH.shape[-1] ** -0.5, q_BLNH.shape[1]
    dq, dk_BKHL, dv_BKHL = [], 0.0, 0.0
    for start, end in _blocks(L):
        block = (slice(None),) * 3 + (slice(start, end),)
        scores = _scores(q_BKGLH, k_BKLH, segments_BL, start, end)
        weights = jnp.exp(scores - log_z_BKGL1[block])
        dweights = _product("bkgqh,bksh->bkgqs", do_BKGLH[block], v_BKLH[:, :, :end])
        dscores = scale * weights * (dweights - inner_BKGL1[block])
        dq.append(_product("bkgqs,bksh->bkgqh", dscores, k_BKLH[:, :, :end]))
        # The transposed gradients are the faster products.
        after = [(0, 0)] * 3 + [(0, L - end)]
        dk_BKHS = _product("bkgqh,bkgqs->bkhs", q_BKGLH[block], dscores)
        dv_BKHS = _product("bkgqh,bkgqs->bkhs", do_BKGLH[block], weights)
        dk_BKHL += jnp.pad(dk_BKHS, after)
        dv_BKHL += jnp.pad(dv_BKHS, after)
    dq_BLNH = _heads_last(jnp.concatenate(dq, 3)).astype(q_BLNH.dtype)
    dk_BLKH = jnp.moveaxis(dk_BKHL, 3, 1).astype(k_BLKH.dtype)
    dv_BLKH = jnp.moveaxis(dv_BKHL, 3, 1).astype(v_BLKH.dtype)
    return dq_BLNH, dk_BLKH, dv_BLKH, None


_attend.defvjp(_forward, _backward)


def _blocks(L: int) -> Iterator[tuple[int, int]]:
    size = -(-L // BLOCKS)
    return ((start, min(start + size, L)) for start in range(0, L, size))


def _scores(q_BKGLH, k_BKLH, segments_BL, start: int, end: int) -> jax.Array:
    """Return the masked scores [B, K, G, Q, S] of one block of queries."""
    q_BKGQH, k_BKSH = q_BKGLH[:, :, :, start:end], k_BKLH[:, :, :end]
    scores = _product("bkgqh,bksh->bkgqs", q_BKGQH, k_BKSH) * q_BKGLH.shape[-1] ** -0.5
    mask_BQS = jnp.arange(start, end)[None, :, None] >= jnp.arange(end)[None, None]
    if segments_BL is not None:
        mask_BQS &= segments_BL[:, start:end, None] == segments_BL[:, None, :end]
    return jnp.where(mask_BQS[:, None, None], scores, -jnp.inf)


def _product(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """Multiply in the smaller of the two dtypes, with a sum of float32 at least."""
    dtype = min(a.dtype, b.dtype, key=lambda dtype: dtype.itemsize)
    return jnp.einsum(
        subscripts,
        *(x.astype(dtype) for x in (a, b)),
        preferred_element_type=jnp.promote_types(dtype, jnp.float32),
    )


def _heads_first(q_BLNH, k_BLKH, v_BLKH) -> tuple[jax.Array, ...]:
    """Return q [B, K, G, L, H], and k and v [B, K, L, H]."""
    keys_and_values = (jnp.swapaxes(x, 1, 2) for x in (k_BLKH, v_BLKH))
    return _grouped(q_BLNH, k_BLKH.shape[2]), *keys_and_values


def _grouped(x_BLNH: jax.Array, K: int) -> jax.Array:
    B, L, N, H = x_BLNH.shape
    return jnp.moveaxis(x_BLNH.reshape(B, L, K, N // K, H), 1, 3)


def _heads_last(x_BKGLH: jax.Array) -> jax.Array:
    B, K, G, L, H = x_BKGLH.shape
    return jnp.moveaxis(x_BKGLH, 3, 1).reshape(B, L, K * G, H)
