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


# The first piece is cut that much more coarsely than the others: its step turns
# embeddings, which are short, into states, and is the least like a flow.
_FIRST_COARSER = 4


def on_pieces(num_steps: int, num_pieces: int, num_nodes: int) -> Grid:
    """Steps for a field that is constant on equal pieces of [0, 1].

    As many steps as pieces are one each. Of more, each lies within a piece, and all
    pieces but the first have about as many; of fewer, each but the first covers about
    as many. A step evaluates the field at the right end of the piece in which it
    begins, at all nodes of the solver.

    Args:
      num_steps: T.
      num_pieces: on which the field is constant.
      num_nodes: S.
    """
    points = _points(num_steps, num_pieces)
    right_T = np.floor(points[:-1] + 1e-6) + 1  # of each step's piece
    times_TS = np.repeat(right_T[:, None] / num_pieces, num_nodes, axis=1)
    lengths_T = None
    if num_steps != num_pieces:
        lengths_T = jnp.asarray(np.diff(points) / num_pieces, jnp.float32)
    return Grid(jnp.asarray(times_TS, jnp.float32), lengths_T)


def _points(num_steps: int, num_pieces: int) -> np.ndarray:
    """The ends of all steps and the start of the first, in units of a piece."""
    if num_steps == 1 or num_pieces == 1:
        return np.linspace(0, num_pieces, num_steps + 1)
    first = max(1, num_steps // (_FIRST_COARSER * num_pieces))
    steps, pieces = num_steps - first, num_pieces - 1
    if steps < pieces:
        rest = np.arange(1, steps + 1) * pieces // steps
    else:
        ends = np.arange(pieces + 1) * steps // pieces
        rest = np.interp(np.arange(1, steps + 1), ends, np.arange(pieces + 1))
    return np.concatenate([np.linspace(0, 1, first + 1), 1 + rest])


# How a uniform grid is changed: (key, number of points) -> what is added to the points
# between 0 and 1: at most half a step, so that they keep their order.
MOVES = {
    "jittered": lambda key, n: jax.random.uniform(key, (n,), minval=-0.5, maxval=0.5),
    "shifted": lambda key, n: jax.random.uniform(key, (1,), minval=-0.5, maxval=0.5),
}


def draw(kind: str, key: jax.Array, num_steps: int, nodes: Sequence[float]) -> Grid:
    """A grid of one of the `MOVES`, whose shapes do not depend on what is drawn.

    Args:
      kind: `jittered`: each point between 0 and 1 of the uniform grid is moved by up to
        half a step; `shifted`: all of them are moved by the same.
      key: of the random moves.
      num_steps: how many steps.
      nodes: the solver's.
    """
    inner = jnp.arange(1, num_steps) + MOVES[kind](key, num_steps - 1)
    points = jnp.concatenate([jnp.zeros(1), inner / num_steps, jnp.ones(1)])
    left_T1, right_T1 = points[:-1, None], points[1:, None]
    node_1S = jnp.asarray(nodes, jnp.float32)[None]
    times_TS = (1 - node_1S) * left_T1 + node_1S * right_T1  # exact at both ends
    return Grid(times_TS, points[1:] - points[:-1])
