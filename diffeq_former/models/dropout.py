"""Dropout and noise that do not depend on how a batch is split.

B batch.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from diffeq_former.models.remat import recomputed


class Dropout(nn.Module):
    """Zeroes each entry with probability `rate`, and divides the others by 1 - rate.

    Each sequence has a mask of its own, sampled with the rng "dropout" and the number
    of the sequence in the whole batch; micro-batches and devices make no difference.
    """

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, sequences_B: jax.Array) -> jax.Array:
        """Return `x`, of which the first axis is B, with entries dropped."""
        if self.rate == 0:
            return x
        words_B2 = _words(self.make_rng("dropout"), sequences_B)

        @recomputed
        def drop(x, words_B2):
            threshold = jnp.uint32(self.rate * (2**32 - 1))
            kept = _random_bits(words_B2, x.shape[1:]) >= threshold
            return jnp.where(kept, x / (1 - self.rate), 0)

        return drop(x, words_B2)


class Noise(nn.Module):
    """Adds normally distributed noise to each entry, sampled like masks of dropout."""

    stddev: float

    @nn.compact
    def __call__(self, x: jax.Array, sequences_B: jax.Array) -> jax.Array:
        """Return `x`, of which the first axis is B, with noise added."""
        words_B2 = _words(self.make_rng("dropout"), sequences_B)
        # 24 bits, the precision of float32, as numbers within (-1, 1).
        high = _random_bits(words_B2, x.shape[1:]) >> 8
        uniform = (high.astype(jnp.float32) + 0.5) / 2**23 - 1
        normal = jax.lax.erf_inv(uniform) * 2**0.5
        return x + (self.stddev * normal).astype(x.dtype)


def _words(key: jax.Array, sequences_B: jax.Array) -> jax.Array:
    """Return two random words for each sequence, [B, 2]."""
    keys_B = jax.vmap(lambda n: jax.random.fold_in(key, n))(sequences_B)
    return jax.random.key_data(keys_B)


def _random_bits(words_B2: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return random 32-bit integers [B, *shape], a hash of each index and two words.

    It is so cheap that the backward pass computes masks again instead of reading them.
    """
    index = jnp.zeros((1, *shape), jnp.uint32)
    for axis, size in enumerate(shape):
        index = index * jnp.uint32(size) + jax.lax.broadcasted_iota(
            jnp.uint32, (1, *shape), axis + 1
        )
    first, second = (
        jnp.expand_dims(words_B2[:, i], tuple(range(1, len(shape) + 1))) for i in (0, 1)
    )
    return _mixed(_mixed(index + first) ^ second)


def _mixed(x: jax.Array) -> jax.Array:
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
