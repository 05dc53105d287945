"""Depth grids. All times over depth are computed here.

T steps over [0, 1], S stage times per step.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Grid(NamedTuple):
    """Consecutive steps that cover [0, 1]; both arrays are float32."""

    times_TS: np.ndarray | jax.Array  # at which steps evaluate the vector field
    lengths_T: np.ndarray | jax.Array | None  # None: all lengths are 1 / T


def uniform(num_steps: int, nodes: Sequence[float]) -> Grid:
    """Return a grid of `num_steps` steps of equal length for a solver's nodes."""
    return Grid(stage_times(num_steps, nodes), None)


def stage_times(num_steps: int, nodes: Sequence[float]) -> np.ndarray:
    """Return the times (k + node) / num_steps of all steps k and nodes, [T, S].

    They are computed in float64 and rounded to float32 once, so that t = 1 is exact.
    """
    steps = np.arange(num_steps)[:, None] + np.asarray(nodes)[None, :]
    return (steps / num_steps).astype(np.float32)


# Another segment has this many times the steps of the first. The first step turns
# embeddings, which have a small norm, into states, and resembles a flow least.
_FIRST_COARSER = 2


def on_segments(num_steps: int, num_segments: int, num_nodes: int) -> Grid:
    """Return a grid for a field that is piecewise constant on [0, 1].

    The field is constant on segments of equal length. With as many steps as segments,
    each step is one segment. With more, each step is within a segment, and all segments
    but the first have about the same number of steps. With fewer, all steps but the
    first cover about the same number of segments. At all nodes of the solver, a step
    evaluates the field at the right end of the segment in which the step begins.

    Args:
      num_steps: Number of steps T.
      num_segments: Number of segments on which the field is constant.
      num_nodes: Number of stages S.
    """
    points_T1 = _step_boundaries(num_steps, num_segments) / num_segments
    grid = on_points(points_T1, [0.0] * num_nodes, num_segments)
    return grid._replace(lengths_T=None) if num_steps == num_segments else grid


def on_points(points_T1, nodes: Sequence[float], num_segments: int = 0) -> Grid:
    """Return the grid of steps between consecutive points.

    Args:
      points_T1: Increasing points from 0 to 1, an array [T + 1].
      nodes: The nodes of the solver.
      num_segments: Number of segments on which the field is constant, as in
        `on_segments`; 0: it is not.
    """
    left_T1, right_T1 = points_T1[:-1, None], points_T1[1:, None]
    node_1S = np.asarray(nodes, np.float32)[None]
    if num_segments:
        ends_T1 = _right_ends(left_T1 * num_segments) / num_segments
        times_TS = np.broadcast_to(ends_T1, (len(ends_T1), len(nodes)))
    else:
        times_TS = (1 - node_1S) * left_T1 + node_1S * right_T1  # exact at both ends
    lengths_T = (right_T1 - left_T1)[:, 0]
    return Grid(times_TS.astype(np.float32), lengths_T.astype(np.float32))


def segment_time(t: jax.Array, num_segments: int) -> jax.Array:
    """Return the time at which a piecewise constant field is evaluated for time t.

    As in `on_segments`, it is the right end of the segment that begins at or before t;
    for t = 1, of the last one.
    """
    right = jnp.minimum(_right_ends(t * num_segments), num_segments)
    return right / num_segments


def segment_ending_at(times_T, num_segments: int):
    """Return the numbers from 0 of the segments that times belong to as right ends.

    These are the times of `on_segments`. Other times belong to the segment they are in.
    """
    return (times_T * num_segments - _ROUNDING).astype(np.int32)


# How far a boundary of segments may be rounded, in units of a segment.
_ROUNDING = 1e-3


def _right_ends(points):
    """Return the right ends of the segments in which steps begin at these points.

    Both are in units of a segment.
    """
    return (points + _ROUNDING) // 1 + 1


def _step_boundaries(num_steps: int, num_segments: int) -> np.ndarray:
    """Return the boundaries of all steps, [T + 1], in units of a segment."""
    if num_steps == 1 or num_segments == 1:
        return np.linspace(0, num_segments, num_steps + 1)
    first = max(1, num_steps // (_FIRST_COARSER * num_segments))
    steps, segments = num_steps - first, num_segments - 1
    if steps < segments:
        rest = np.arange(1, steps + 1) * segments // steps
    else:
        ends = np.arange(segments + 1) * steps // segments
        rest = np.interp(np.arange(1, steps + 1), ends, np.arange(segments + 1))
    return np.concatenate([np.linspace(0, 1, first + 1), 1 + rest])
