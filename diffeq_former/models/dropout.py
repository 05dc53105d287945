"""Dropout whose masks do not depend on how a batch is split.

B batch.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp


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
        key = self.make_rng("dropout")

        def keep(sequence):
            own = jax.random.fold_in(key, sequence)
            return jax.random.bernoulli(own, 1 - self.rate, x.shape[1:])

        return jnp.where(jax.vmap(keep)(sequences_B), x / (1 - self.rate), 0)
