"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864).

The two halves of what is rotated form the rotated pairs: of a whole head, or of its
first entries (`rope_fraction`), as in GPT-NeoX (Black et al. 2022, arXiv 2204.06745).

B batch, L length, N heads, H head size, R rotated entries of a head, h = R / 2.
"""

import math

import jax
import jax.numpy as jnp

from diffeq_former.config import ModelConfig


def rotate(
    c: ModelConfig, positions_BL: jax.Array, q_BLNH: jax.Array, k_BLKH: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Rotate queries and keys by their positions, unless these are learned.

    The computation is in float32, or in float64 for float64 inputs.
    """
    if c.learned_positions:
        return q_BLNH, k_BLKH
    frequencies_h = _frequencies(c)
    return (
        _rotate(q_BLNH, positions_BL, frequencies_h),
        _rotate(k_BLKH, positions_BL, frequencies_h),
    )


def _frequencies(c: ModelConfig) -> jax.Array:
    """Return base^(-2i/R) in radians per position, rescaled by `rope_scaling`: [h]."""
    half = c.rotary_size // 2
    frequencies_h = c.rope_base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    return ROPE_SCALINGS[c.rope_scaling](c, frequencies_h)


def _rotate(
    x_BLNH: jax.Array, positions_BL: jax.Array, frequencies_h: jax.Array
) -> jax.Array:
    """Rotate the pairs (x[i], x[i + h]) for i < h by position * frequency."""
    h = len(frequencies_h)
    angles_BLh = positions_BL[..., None].astype(jnp.float32) * frequencies_h[None, None]
    cos, sin = jnp.cos(angles_BLh)[:, :, None], jnp.sin(angles_BLh)[:, :, None]
    promoted_BLNH = x_BLNH.astype(jnp.promote_types(x_BLNH.dtype, jnp.float32))
    first, second, rest = jnp.split(promoted_BLNH, [h, 2 * h], axis=-1)
    rotated = (first * cos - second * sin, second * cos + first * sin, rest)
    return jnp.concatenate(rotated, axis=-1).astype(x_BLNH.dtype)


def _linear(c: ModelConfig, frequencies_h: jax.Array) -> jax.Array:
    """Position interpolation (Chen et al. 2023, arXiv 2306.15595)."""
    return frequencies_h / c.rope_factor


def _llama3(c: ModelConfig, frequencies_h: jax.Array) -> jax.Array:
    """Reduce low frequencies, keep high ones and interpolate between (Llama 3.1)."""
    turns_h = c.rope_original_len * frequencies_h / (2 * math.pi)
    kept_h = (turns_h - c.rope_low_turns) / (c.rope_high_turns - c.rope_low_turns)
    kept_h = jnp.clip(kept_h, 0, 1)
    return frequencies_h * (kept_h + (1 - kept_h) / c.rope_factor)


ROPE_SCALINGS = {"none": lambda c, w_h: w_h, "linear": _linear, "llama3": _llama3}
