"""Parameters outside the blocks: embeddings, final norm and head.

B batch, L length, D model, V vocabulary.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from diffeq_former.config import ModelConfig
from diffeq_former.models.dropout import Dropout
from diffeq_former.models.mup import final_norm_scale
from diffeq_former.models.parameters import norm_parameters, normal
from diffeq_former.models.partition import constrain
from diffeq_former.models.weight_specs import NormSpec


class Embedding(nn.Module):
    """Token embeddings, and learned position embeddings if the model has them."""

    config: ModelConfig
    train: bool

    def setup(self):
        c = self.config
        self.token = normal(
            self, "token", 0.02, (c.vocab_size, c.d_model), ("vocab", "embed")
        )
        if c.learned_positions:
            shape, axes = (c.max_len, c.d_model), ("position", "embed")
            self.position = normal(self, "position", 0.02, shape, axes)
        self.dropout = Dropout(c.dropout if self.train else 0.0)

    def __call__(
        self, tokens_BL: jax.Array, positions_BL, sequences_B=None
    ) -> jax.Array:
        # Unshard the embedding axis; else the result would be sharded along it, too.
        x_BLD = constrain(self.token, "vocab", "state")[tokens_BL]
        if self.config.learned_positions:
            x_BLD = x_BLD + constrain(self.position, "position", "state")[positions_BL]
        x_BLD = x_BLD.astype(jnp.dtype(self.config.dtype))
        return self.dropout(x_BLD, sequences_B)


class FinalNorm(nn.Module):
    """The parameters of the final norm."""

    config: ModelConfig
    spec: NormSpec

    @nn.compact
    def __call__(self) -> dict[str, jax.Array]:
        return norm_parameters(self, self.spec, scale=final_norm_scale(self.config))


class Head(nn.Module):
    """The matrix [D, V] of an untied head."""

    config: ModelConfig

    @nn.compact
    def __call__(self) -> jax.Array:
        shape = (self.config.d_model, self.config.vocab_size)
        return normal(self, "kernel", 0.02, shape, ("embed", "vocab"))
