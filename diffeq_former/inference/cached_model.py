"""A model that reads token after token: pure functions of weights and cache.

B rows, L tokens of each, S slots of the cache, V vocabulary.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from diffeq_former.config import ModelConfig
from diffeq_former.models.transformer import Transformer


class Weights(NamedTuple):
    params: dict
    table: dict  # of the parameters, at the model's depth


class CachedModel:
    """A model at one depth."""

    def __init__(self, config: ModelConfig):
        self.config = config.for_inference()
        self._model = Transformer(self.config, cached=True)

    def weights(self, params: dict) -> Weights:
        return Weights(params, self._model.apply({"params": params}, method="tabulate"))

    def empty_cache(self, B: int, S: int) -> dict:
        """Room for keys and values, [steps, B, S, key-value heads, head] each."""
        model = Transformer(dataclasses.replace(self.config, max_len=S), cached=True)
        tokens_B1 = jnp.zeros((B, 1), jnp.int32)
        made = jax.eval_shape(model.init, jax.random.key(0), tokens_B1)
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), made["cache"])

    def read(self, weights: Weights, cache: dict, tokens_BL, positions_BL) -> dict:
        """The cache with the tokens' keys and values at their positions."""
        return self._apply(weights, cache, tokens_BL, positions_BL, "hidden")[1]

    def logits(self, weights: Weights, cache: dict, tokens_BL, positions_BL):
        """Logits [B, L, V] of what follows each token, and the cache as of `read`."""
        return self._apply(weights, cache, tokens_BL, positions_BL, "__call__")

    def _apply(self, weights, cache, tokens_BL, positions_BL, method):
        result, changed = self._model.apply(
            {"params": weights.params, "cache": cache},
            tokens_BL,
            positions_BL=positions_BL,
            table=weights.table,
            mutable=["cache"],
            method=method,
        )
        return result, changed["cache"]
