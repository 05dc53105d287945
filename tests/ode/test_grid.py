"""Grids that are sampled: what is random in them, and what is not."""

import functools

import jax
import numpy as np
import pytest

from diffeq_former.ode.grid import MOVES, on_segments, sample, stage_times, uniform
from diffeq_former.ode.solvers import SOLVERS

T, NODES = 8, (0.0, 0.5, 1.0)


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def _sampled(kind, seeds, num_steps, nodes):
    return jax.vmap(lambda seed: sample(kind, jax.random.key(seed), num_steps, nodes))(
        seeds
    )


def sampled(kind, seeds, num_steps=T, nodes=NODES):
    """A grid for each of so many seeds, in arrays."""
    return jax.tree.map(np.asarray, _sampled(kind, np.arange(seeds), num_steps, nodes))


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
    # The first piece is cut at four times as many, again at eight.
    near = [n * num_segments + more for n in (3, 4, 8) for more in (-1, 0, 1, 2)]
    for num_steps in {*range(1, 2 * num_segments + 2), *near} - {num_segments}:
        grid = jax.tree.map(np.asarray, on_segments(num_steps, num_segments, 3))
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
        n: T * np.asarray(on_segments(n, T, 1).lengths_T) for n in (4, 6, 16, 64, 96)
    }
    assert lengths[4] == pytest.approx([1, 2, 2, 3])
    assert lengths[6] == pytest.approx([1, 1, 1, 2, 1, 2])
    assert lengths[16] == pytest.approx([1] + 12 * [1 / 2] + 3 * [1 / 3])
    assert lengths[64][:3] == pytest.approx([1 / 2, 1 / 2, 1 / 8])
    assert lengths[96][:4] == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1 / 13])


@pytest.mark.parametrize("kind", MOVES)
@pytest.mark.parametrize("num_steps", [1, 2, T])
def test_a_drawn_grid_covers_the_interval_step_by_step(kind, num_steps):
    grids = sampled(kind, 20, num_steps)
    assert grids.times_TS.shape == (20, num_steps, 3)
    assert grids.times_TS.dtype == grids.lengths_T.dtype == np.float32
    for seed in range(20):
        grid = jax.tree.map(lambda x, seed=seed: x[seed], grids)
        left, middle, right = grid.times_TS.T
        assert left[0] == 0 and right[-1] == 1
        np.testing.assert_array_equal(left[1:], right[:-1])
        np.testing.assert_allclose(middle, (left + right) / 2, rtol=0, atol=1e-7)
        np.testing.assert_allclose(grid.lengths_T, right - left, rtol=0, atol=1e-7)
        assert (grid.lengths_T > 0).all()


@pytest.mark.parametrize("kind", MOVES)
def test_points_move_anew_by_up_to_half_a_step(kind):
    rights = sampled(kind, 400).times_TS[:, :-1, 2]
    moves = rights * T - np.arange(1, T)
    assert np.abs(moves).max() <= 0.5 + 1e-5
    assert np.abs(moves.mean(0)).max() < 0.06  # four standard errors
    np.testing.assert_allclose(moves.std(0), 12**-0.5, rtol=0, atol=0.03)
    together = np.ptp(moves, axis=1).max() < 1e-5
    assert together == (kind == "shifted")
    assert len(np.unique(moves[:, 0])) > 390


@pytest.mark.parametrize("kind", MOVES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_times_are_the_solvers(kind, solver):
    """The right end for euler, the middle for strang, k + c_i h for Runge-Kutta."""
    nodes = SOLVERS[solver].nodes
    ends, times = sampled(kind, 3).times_TS, sampled(kind, 3, nodes=nodes).times_TS
    left, right = ends[..., :1], ends[..., 2:]
    expected = left + np.array(nodes) * (right - left)
    np.testing.assert_allclose(times, expected, rtol=0, atol=1e-7)
