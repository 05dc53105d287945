"""Layer and RMS normalisation with given scale and shift; statistics in float32
or, of float64 states, in float64.

B batch, L length, D model.
"""

import jax
import jax.numpy as jnp

Weights = dict[str, jax.Array]


def layer_norm(weights: Weights, x_BLD: jax.Array, eps: float) -> jax.Array:
    x = _exact(x_BLD)
    x = x - x.mean(-1, keepdims=True)
    return _rescale(weights, x, eps).astype(x_BLD.dtype)


def rms_norm(weights: Weights, x_BLD: jax.Array, eps: float) -> jax.Array:
    return _rescale(weights, _exact(x_BLD), eps).astype(x_BLD.dtype)


def _exact(x: jax.Array) -> jax.Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _rescale(weights: Weights, x: jax.Array, eps: float) -> jax.Array:
    y = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + eps)
    y = y * _last_axis(weights["scale"], y)
    return y + _last_axis(weights["shift"], y) if "shift" in weights else y


def _last_axis(weight_D: jax.Array, like: jax.Array) -> jax.Array:
    return jnp.expand_dims(weight_D, tuple(range(like.ndim - 1)))
