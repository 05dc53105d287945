"""Incremental decoding with a key-value cache, as pure functions of weights and cache.

B sequences, L tokens of each, S positions of the cache, V vocabulary, T solver steps.
"""

import dataclasses
from typing import NamedTuple

import flax
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


class Cache(NamedTuple):
    """Keys and values of the tokens of some sequences, in the order of positions."""

    past: dict  # those of the first `length` positions, which are only read
    length_B: jax.Array
    new: dict  # those of the positions that follow, which are written

    @property
    def variables(self) -> dict:
        """The collections of variables of the model."""
        past = flax.traverse_util.flatten_dict(self.past)
        for path, x in list(past.items()):
            shape = (x.shape[0], *self.length_B.shape)
            past[*path[:-1], "length"] = jnp.broadcast_to(self.length_B, shape)
        return {"past": flax.traverse_util.unflatten_dict(past), "cache": self.new}


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
        """Return zeroed keys and values, [T, B, KV heads, S, head size] each."""
        model = Transformer(dataclasses.replace(self.config, max_len=S), cached=True)
        tokens_B1 = jnp.zeros((B, 1), jnp.int32)
        shapes = jax.eval_shape(model.init, jax.random.key(0), tokens_B1)
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes["cache"])

    def read(self, weights: Weights, cache: Cache, tokens_BL, positions_BL):
        """Return the normalised states [B, L, D] at the end of depth, and the cache.

        The keys and values of the tokens are written to the cache.
        """
        x_BLD, changed = self._model.apply(
            {"params": weights.params, **cache.variables},
            tokens_BL,
            positions_BL=positions_BL,
            table=weights.table,
            grid=weights.grid,
            mutable=["cache"],
            method="hidden",
        )
        return x_BLD, cache._replace(new=changed["cache"])

    def project(self, weights: Weights, x_BLD: jax.Array) -> jax.Array:
        """Return the next-token logits [B, L, V] of states that `read` returned."""
        return self._model.apply({"params": weights.params}, x_BLD, method="logits")

    def logits(self, weights: Weights, cache: Cache, tokens_BL, positions_BL):
        """Return the next-token logits [B, L, V] and the cache updated as by `read`."""
        x_BLD, cache = self.read(weights, cache, tokens_BL, positions_BL)
        return self.project(weights, x_BLD), cache
