"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864), halves rotated.

B batch, L length, N heads, H head.
"""

import jax
import jax.numpy as jnp


def rotate(x_BLNH: jax.Array, positions_BL: jax.Array, base: float) -> jax.Array:
    """Rotates the pairs (x[i], x[i + H/2]) by position * base^(-2i/H).

    In float32, or in float64 what comes in it.
    """
    half = x_BLNH.shape[-1] // 2
    frequencies_h = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles_BLh = positions_BL[..., None].astype(jnp.float32) * frequencies_h[None, None]
    cos, sin = jnp.cos(angles_BLh)[:, :, None], jnp.sin(angles_BLh)[:, :, None]
    exact_BLNH = x_BLNH.astype(jnp.promote_types(x_BLNH.dtype, jnp.float32))
    first, second = jnp.split(exact_BLNH, 2, axis=-1)
    rotated = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate(rotated, axis=-1).astype(x_BLNH.dtype)
