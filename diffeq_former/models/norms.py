"""Layer and RMS normalisation with given scale and shift.

Statistics are in float32, or in float64 for float64 states.

B batch, L length, D model.
"""

import jax
import jax.numpy as jnp

from diffeq_former.models.remat import recomputed

Weights = dict[str, jax.Array]


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


def _promoted(x: jax.Array) -> jax.Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _rescale(weights: Weights, x: jax.Array, eps: float) -> jax.Array:
    y = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + eps)
    y = y * _last_axis(weights["scale"], y)
    return y + _last_axis(weights["shift"], y) if "shift" in weights else y


def _last_axis(weight_D: jax.Array, like: jax.Array) -> jax.Array:
    return jnp.expand_dims(weight_D, tuple(range(like.ndim - 1)))
