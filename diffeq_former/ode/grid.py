"""The one place where times come from. T steps over [0, 1], S stage times of a step."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Grid(NamedTuple):
    """Steps that cover [0, 1], one after the other; both are float32."""

    times_TS: jax.Array  # at which a step evaluates the field
    lengths_T: jax.Array | None  # None: all are 1 / T


def uniform(num_steps: int, nodes: Sequence[float]) -> Grid:
    """Steps of one length."""
    return Grid(stage_times(num_steps, nodes), None)


def stage_times(num_steps: int, nodes: Sequence[float]) -> jax.Array:
    """Times [num_steps, len(nodes)] in [0, 1], float32: step k has (k + node) / L.

    Computed exactly and rounded once, so that the grid of L steps is the same
    wherever it is needed and t = 1 is reached exactly.
    """
    steps = np.arange(num_steps)[:, None] + np.asarray(nodes)[None, :]
    return jnp.asarray(steps / num_steps, jnp.float32)


# How a uniform grid is changed: (key, number of points) -> what is added to the points
# between 0 and 1: at most half a step, so that they keep their order.
MOVES = {
    "jittered": lambda key, n: jax.random.uniform(key, (n,), minval=-0.5, maxval=0.5),
    "shifted": lambda key, n: jax.random.uniform(key, (1,), minval=-0.5, maxval=0.5),
}
FIXED = "fixed"
KINDS = (FIXED, *MOVES)


def draw(kind: str, key: jax.Array, num_steps: int, nodes: Sequence[float]) -> Grid:
    """A grid of one of the `KINDS`, whose shapes do not depend on what is drawn.

    Args:
      kind: `fixed`: uniform; `jittered`: each point between 0 and 1 moved by up to half
        a step; `shifted`: all of them moved by the same.
      key: of the random moves.
      num_steps: how many steps.
      nodes: the solver's.
    """
    if kind == FIXED:
        return uniform(num_steps, nodes)
    inner = jnp.arange(1, num_steps) + MOVES[kind](key, num_steps - 1)
    points = jnp.concatenate([jnp.zeros(1), inner / num_steps, jnp.ones(1)])
    left_T1, right_T1 = points[:-1, None], points[1:, None]
    node_1S = jnp.asarray(nodes, jnp.float32)[None]
    times_TS = (1 - node_1S) * left_T1 + node_1S * right_T1  # exact at both ends
    return Grid(times_TS, points[1:] - points[:-1])
