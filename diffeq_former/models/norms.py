"""Layer and RMS normalisation with given scale and shift.

Statistics are in float32, or in float64 for float64 states.

B batch, L length, D model, N heads, K key-value heads, H head.
"""

import jax
import jax.numpy as jnp

from diffeq_former.config import ModelConfig
from diffeq_former.models.remat import recomputed
from diffeq_former.models.weight_specs import NormSpec, WeightSpecs

Weights = dict[str, jax.Array]

QK_NORMS = ("query_norm", "key_norm")


def layer_norm(weights: Weights, x_BLD: jax.Array, eps: float) -> jax.Array:
    """Normalise over the last axis to mean 0 and variance 1, then scale and shift."""

    @recomputed
    def normalise(weights, x_BLD):
        x = _promoted(x_BLD)
        x = x - x.mean(-1, keepdims=True)
        return _rescale(weights, x, eps).astype(x_BLD.dtype)

    return normalise(weights, x_BLD)


def rms_norm(weights: Weights, x_BLD: jax.Array, eps: float) -> jax.Array:
    """Divide by the root mean square over the last axis, then scale and shift."""

    @recomputed
    def normalise(weights, x_BLD):
        return _rescale(weights, _promoted(x_BLD), eps).astype(x_BLD.dtype)

    return normalise(weights, x_BLD)


def qk_norm_specs(c: ModelConfig) -> WeightSpecs:
    """Return the specifications of the norms of queries and keys; none by default."""
    norms = dict.fromkeys(QK_NORMS, NormSpec(c.head_size, shift=False))
    return norms if c.qk_norm else {}


def normalise_queries_and_keys(
    c: ModelConfig, weights: dict, q_BLNH: jax.Array, k_BLKH: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Normalise queries and keys over the head size if the model does (`qk_norm`).

    All heads of a layer share a learned scale [H] for queries and one for keys, as in
    Qwen 3. Scores are then bounded, however large the kernels (Henry et al. 2020, arXiv
    2010.04245; Dehghani et al. 2023, arXiv 2302.05442).
    """
    if not c.qk_norm:
        return q_BLNH, k_BLKH
    query_norm, key_norm = (weights[name] for name in QK_NORMS)
    return (
        rms_norm(query_norm, q_BLNH, c.norm_eps),
        rms_norm(key_norm, k_BLKH, c.norm_eps),
    )


def _promoted(x: jax.Array) -> jax.Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _rescale(weights: Weights, x: jax.Array, eps: float) -> jax.Array:
    y = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + eps)
    y = y * _last_axis(weights["scale"], y)
    return y + _last_axis(weights["shift"], y) if "shift" in weights else y


def _last_axis(weight_D: jax.Array, like: jax.Array) -> jax.Array:
    return jnp.expand_dims(weight_D, tuple(range(like.ndim - 1)))
