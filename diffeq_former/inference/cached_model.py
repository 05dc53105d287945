"""Incremental decoding with a key-value cache, as pure functions of weights and cache.

B sequences, L tokens of each, S slots of the cache, V vocabulary.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from diffeq_former.config import ModelConfig
from diffeq_former.models.grid import default_grid
from diffeq_former.models.transformer import Transformer
from diffeq_former.ode.grid import Grid


class Weights(NamedTuple):
    """Parameters of a model together with the weights of its solver steps."""

    params: dict
    table: dict  # weights at the steps of the grid, generated from `params`
    grid: Grid


class CachedModel:
    """A model with a fixed number of solver steps that reads and writes a cache.

    Args:
      config: The config of the model.
      grid: Its steps; None: the model's own.
    """

    def __init__(self, config: ModelConfig, grid: Grid | None = None):
        self.config = config.for_inference()
        self._grid = grid
        self._model = Transformer(self.config, cached=True)

    def weights(self, params: dict) -> Weights:
        """Generate the weights of all solver steps from the parameters."""
        grid = self._grid or default_grid(self.config)
        table = self._model.apply({"params": params}, grid, method="tabulate")
        return Weights(params, table, grid)

    def empty_cache(self, B: int, S: int) -> dict:
        """Return zeroed keys and values, [steps, B, S, KV heads, head size] each."""
        model = Transformer(dataclasses.replace(self.config, max_len=S), cached=True)
        tokens_B1 = jnp.zeros((B, 1), jnp.int32)
        shapes = jax.eval_shape(model.init, jax.random.key(0), tokens_B1)
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes["cache"])

    def read(self, weights: Weights, cache: dict, tokens_BL, positions_BL) -> dict:
        """Return the cache with the keys and values of the tokens written to it."""
        return self._apply(weights, cache, tokens_BL, positions_BL, "hidden")[1]

    def logits(self, weights: Weights, cache: dict, tokens_BL, positions_BL):
        """Return the next-token logits [B, L, V] and the cache updated as by `read`."""
        return self._apply(weights, cache, tokens_BL, positions_BL, "__call__")

    def _apply(self, weights, cache, tokens_BL, positions_BL, method):
        result, changed = self._model.apply(
            {"params": weights.params, "cache": cache},
            tokens_BL,
            positions_BL=positions_BL,
            table=weights.table,
            grid=weights.grid,
            mutable=["cache"],
            method=method,
        )
        return result, changed["cache"]
