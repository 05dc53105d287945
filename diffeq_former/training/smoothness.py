"""Smoothness of the generated weights in depth: the integral of |dW/dt|^2.

It is computed from the weight table, once per training step for all micro-batches, and
from kernels only: norms and biases are few and differ in scale, so they would either
vanish in the mean or dominate it.

Shape suffixes: T grid steps, S stages of a step.
"""

import jax
import jax.numpy as jnp

from diffeq_former.config import Config
from diffeq_former.ode.grid import Grid


def smoothness(table: dict, grid: Grid) -> jax.Array:
    """Return sum_k |W_{k+1} - W_k|^2 / (t_{k+1} - t_k) over the size of one W.

    The sum runs over the entries of the table in the order of time, with times in
    [0, 1]. Neighbours at equal times, which some solvers have, do not contribute. The
    result is in float32, and 0 for a table with a single entry.

    Args:
      table: The weights of each layer, with leading axes [T, S].
      grid: The grid of the table.
    """
    gaps = jnp.diff(grid.times_TS.reshape(-1))
    per_gap = 1 / jnp.where(gaps > 0, gaps, jnp.inf)
    kernels = [layer["kernel"] for layer in table.values() if "kernel" in layer]
    squares = sum(jnp.sum(_squared_steps(w_TS) * per_gap) for w_TS in kernels)
    return squares / sum(w_TS[0, 0].size for w_TS in kernels)


def is_known(table: dict) -> bool:
    """Return whether a table has kernels.

    There are none if weights are generated per step, or if adapters freeze the kernels.
    """
    return any("kernel" in layer for layer in table.values())


def add(
    config: Config, table: dict, grid: Grid, gradients: dict
) -> tuple[jax.Array, dict]:
    """Return the smoothness, and the gradients plus its own weighted gradient.

    Args:
      config: The config, with the weight `training.smoothness`.
      table: The weights of each layer, with leading axes [T, S].
      grid: The grid of the table.
      gradients: Gradients with respect to the table, float32.
    """
    weight = config.training.smoothness
    if not weight:
        return smoothness(table, grid), gradients
    value, own = jax.value_and_grad(smoothness)(table, grid)
    return value, jax.tree.map(lambda g, s: g + weight * s, gradients, own)


def _squared_steps(w_TS: jax.Array) -> jax.Array:
    """Return |W_{k+1} - W_k|^2 of neighbouring entries of the table, [T S - 1]."""
    w = w_TS.reshape(-1, *w_TS.shape[2:]).astype(jnp.float32)
    return jnp.square(jnp.diff(w, axis=0)).sum(tuple(range(1, w.ndim)))
