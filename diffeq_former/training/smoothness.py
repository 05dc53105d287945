"""How fast generated weights move through depth: the integral of |dW/dt|^2.

Over the table of a step: one sum for all micro-batches. Of the kernels only: norms and
biases are few, on other scales than kernels, and would hide in, or rule, the mean.

T grid steps, S stage times of a step.
"""

import jax
import jax.numpy as jnp

from diffeq_former.config import Config
from diffeq_former.ode.grid import Grid


def smoothness(table: dict, grid: Grid) -> jax.Array:
    """sum_k |W_{k+1} - W_k|^2 / (t_{k+1} - t_k) over the number of weights in one W.

    In float32. Times are shares of depth, in [0, 1], and rows those of the table, in
    the order of time; of rows at the same time, which some solvers have, one counts.
    Of a single row it is 0.

    Args:
      table: units with leading axes [T, S].
      grid: the table's.
    """
    gaps = jnp.diff(grid.times_TS.reshape(-1))
    per_gap = 1 / jnp.where(gaps > 0, gaps, jnp.inf)
    kernels = [unit["kernel"] for unit in table.values() if "kernel" in unit]
    squares = sum(jnp.sum(_squared_steps(w_TS) * per_gap) for w_TS in kernels)
    return squares / sum(w_TS[0, 0].size for w_TS in kernels)


def is_known(table: dict) -> bool:
    """Whether a table has kernels: none is made per step, and adapters freeze them."""
    return any("kernel" in unit for unit in table.values())


def add(
    config: Config, table: dict, grid: Grid, gradients: dict
) -> tuple[jax.Array, dict]:
    """The smoothness, and the gradients with its own, weighted, added.

    Args:
      config: whose weight counts.
      table: units with leading axes [T, S].
      grid: the table's.
      gradients: like the table, float32.
    """
    weight = config.training.smoothness
    if not weight:
        return smoothness(table, grid), gradients
    value, own = jax.value_and_grad(smoothness)(table, grid)
    return value, jax.tree.map(lambda g, s: g + weight * s, gradients, own)


def _squared_steps(w_TS: jax.Array) -> jax.Array:
    """|W_{k+1} - W_k|^2 of neighbouring rows, [T S - 1]."""
    w = w_TS.reshape(-1, *w_TS.shape[2:]).astype(jnp.float32)
    return jnp.square(jnp.diff(w, axis=0)).sum(tuple(range(1, w.ndim)))
