"""Figures of ways whose shape is known."""

import numpy as np
import pytest

from diffeq_former.analysis.trajectory import (
    angles,
    describe,
    effective_rank,
    interaction_energy,
)

RANDOM = np.random.default_rng(0)


def test_a_straight_line_costs_the_least():
    first, last = RANDOM.normal(size=(2, 3, 8))
    part = np.linspace(0, 1, 7)[:, None, None]
    found = describe((1 - part) * first + part * last, 2.0 * part[:, 0, 0])
    length = np.linalg.norm(last - first, axis=-1)
    np.testing.assert_allclose(found["speed"], np.tile(length / 2, (6, 1)))
    np.testing.assert_allclose(found["angle"], 0, atol=1e-6)
    np.testing.assert_allclose(found["deviation"], 0, atol=1e-12)
    np.testing.assert_allclose(found["cost"], length**2 / 2)
    np.testing.assert_allclose(found["least_cost"], length**2 / 2)
    np.testing.assert_allclose(found["norm"][0], np.linalg.norm(first, axis=-1))


def test_a_half_circle_costs_more_by_half_pi_squared():
    """Of radius r in time T: length pi r, speed pi r / T, chord 2 r."""
    T, radius, interval = 400, 3.0, 5.0
    turn = np.linspace(0, np.pi, T + 1)[:, None]
    circle = radius * np.stack([np.cos(turn), np.sin(turn), 0 * turn], -1)
    found = describe(circle, np.linspace(0, interval, T + 1))
    np.testing.assert_allclose(found["cost"] / found["least_cost"], np.pi**2 / 4, 1e-5)
    np.testing.assert_allclose(found["speed"], np.pi * radius / interval, rtol=1e-5)
    np.testing.assert_allclose(found["angle"], 180 / T, rtol=1e-9)
    assert found["deviation"].max() == pytest.approx(radius)
    assert found["deviation"].argmax() == T // 2


def test_uneven_speed_costs_more_on_the_same_line():
    far = np.array([0, 1, 2, 6.0])[:, None, None] * np.ones((1, 1, 4))
    found = describe(far, np.arange(4.0))
    np.testing.assert_allclose(found["cost"], 4 * (1 + 1 + 16))
    np.testing.assert_allclose(found["least_cost"], 4 * 36 / 3)
    np.testing.assert_allclose(found["deviation"][1], 2 * 1)


def test_steps_of_several_lengths_at_one_speed_cost_the_least():
    times = np.array([0, 1, 4, 5, 8.0])
    found = describe(times[:, None, None] * np.ones((1, 2, 4)), times)
    np.testing.assert_allclose(found["speed"], 2.0)
    np.testing.assert_allclose(found["deviation"], 0, atol=1e-12)
    np.testing.assert_allclose(found["cost"], found["least_cost"])


def test_angles_are_exact_at_both_ends():
    v = np.array([1.0, 0, 0])
    for degrees in (0, 1e-7, 60, 90, 180 - 1e-7, 180):
        turned = np.array([np.cos(np.radians(degrees)), np.sin(np.radians(degrees)), 0])
        assert angles(v, 5 * turned) == pytest.approx(degrees, rel=1e-6, abs=1e-13)
    assert np.isnan(angles(v, np.zeros(3)))


@pytest.mark.parametrize("rank", [1, 4])
def test_effective_rank_of_equal_directions_is_their_number(rank):
    basis = np.linalg.qr(RANDOM.normal(size=(8, 8)))[0]
    x_LD = np.concatenate([basis[:rank], np.zeros((3, 8))])
    assert effective_rank(x_LD) == pytest.approx(rank)
    assert effective_rank(7 * x_LD) == pytest.approx(rank)


@pytest.mark.parametrize("beta", [0.5, 1.0, 9.0])
def test_interaction_energy_of_known_directions(beta):
    """Of orthogonal, opposite and equal directions, whatever their lengths."""
    axes, lengths = np.eye(4), np.array([[1], [2], [3], [0.5]])
    orthogonal, opposite = lengths * axes, np.array([axes[0], -3 * axes[0]])
    found = interaction_energy(np.stack([orthogonal, lengths * axes[:1]]), beta)
    grown = np.exp(beta)
    expected = [(4 * grown + 12) / 16, grown]
    np.testing.assert_allclose(found, np.array(expected) / (2 * beta))
    expected = (grown + 1 / grown) / 2 / (2 * beta)
    assert interaction_energy(opposite, beta) == pytest.approx(expected)


def test_energy_along_a_trajectory_is_a_fraction_of_its_maximum():
    """Two orthogonal tokens that meet: from (e + 1) / 2e to 1."""
    x = np.array([[[1, 0], [0, 2]], [[1, 0], [2, 0]]])
    np.testing.assert_allclose(
        describe(x, np.array([0.0, 1.0]))["energy"], [(1 + 1 / np.e) / 2, 1]
    )
