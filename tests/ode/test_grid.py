"""Times and lengths of the steps of a grid."""

import jax.numpy as jnp
import numpy as np
import pytest

from diffeq_former.ode.grid import (
    on_points,
    on_segments,
    segment_ending_at,
    segment_time,
    stage_times,
    uniform,
)
from diffeq_former.ode.solvers import SOLVERS

T = 8


@pytest.mark.parametrize("num_steps", [1, 6, 93, 99, 1000])
def test_the_uniform_grid_ends_at_one_and_rounds_once(num_steps):
    times = np.asarray(stage_times(num_steps, (0.5, 1.0)))
    assert times.dtype == np.float32 and times.shape == (num_steps, 2)
    exact = (np.arange(num_steps)[:, None] + np.array([0.5, 1.0])) / num_steps
    np.testing.assert_array_equal(times, exact.astype(np.float32))
    assert times[-1, 1] == 1.0


@pytest.mark.parametrize("num_segments", [1, 2, 3, T, 12])
def test_as_many_steps_as_segments_are_the_uniform_grid(num_segments):
    grid, same = (
        on_segments(num_segments, num_segments, 1),
        uniform(num_segments, (1.0,)),
    )
    np.testing.assert_array_equal(grid.times_TS, same.times_TS)
    assert grid.lengths_T is None and same.lengths_T is None


@pytest.mark.parametrize("num_segments", [1, 2, 3, T, 12])
def test_steps_keep_to_the_segments(num_segments):
    """A step is a part of one piece or covers some; the times are of where it begins"""
    # The first segment is split at four times as many steps, and again at six.
    near = [n * num_segments + more for n in (3, 4, 6) for more in (-1, 0, 1, 2)]
    for num_steps in {*range(1, 2 * num_segments + 2), *near} - {num_segments}:
        grid = on_segments(num_steps, num_segments, 3)
        assert grid.times_TS.shape == (num_steps, 3)
        points = np.concatenate([[0], np.cumsum(grid.lengths_T, dtype=float)])
        assert (grid.lengths_T > 0).all() and points[-1] == pytest.approx(1)
        points *= num_segments
        whole = np.abs(points - np.round(points)) < 1e-4
        if num_steps < num_segments:
            assert whole.all()
        else:
            assert whole.sum() == num_segments + 1
        left = np.floor(points[:-1] + 1e-4)
        np.testing.assert_allclose(
            grid.times_TS, np.tile((left[:, None] + 1) / num_segments, 3), atol=1e-7
        )


def test_the_first_piece_is_cut_last_and_the_others_evenly():
    lengths = {
        n: T * np.asarray(on_segments(n, T, 1).lengths_T) for n in (4, 6, 16, 32, 64)
    }
    assert lengths[4] == pytest.approx([1, 2, 2, 3])
    assert lengths[6] == pytest.approx([1, 1, 1, 2, 1, 2])
    assert lengths[16] == pytest.approx([1] + 12 * [1 / 2] + 3 * [1 / 3])
    assert lengths[32][:3] == pytest.approx([1 / 2, 1 / 2, 1 / 4])
    assert lengths[64][:5] == pytest.approx(4 * [1 / 4] + [1 / 8])


@pytest.mark.parametrize("n", [12, 67, 96, 1000])
def test_segments_of_rounded_times(n):
    """Ends of segments, in float32, may be rounded either way."""
    ends = on_segments(n, n, 1).times_TS[:, 0]
    starts = jnp.asarray(np.concatenate([[0], ends[:-1]]), jnp.float32)
    np.testing.assert_array_equal(segment_ending_at(ends, n), np.arange(n))
    np.testing.assert_allclose(segment_time(starts, n), ends, rtol=1e-6)
    points = np.concatenate([starts, [1]])
    np.testing.assert_allclose(on_points(points, [1.0], n).times_TS[:, 0], ends)


@pytest.mark.parametrize("solver", SOLVERS)
def test_steps_between_points(solver):
    """k + c_i h for Runge-Kutta, the middle for strang, the end for euler."""
    nodes, points = SOLVERS[solver].nodes, np.array([0.0, 0.1, 0.5, 0.8, 1.0])
    grid, lengths = on_points(points, nodes), np.diff(points)
    np.testing.assert_allclose(grid.lengths_T, lengths, rtol=1e-6)
    times = points[:-1, None] + np.array(nodes) * lengths[:, None]
    np.testing.assert_allclose(grid.times_TS, times, rtol=0, atol=1e-7)
    assert grid.times_TS.dtype == grid.lengths_T.dtype == np.float32
