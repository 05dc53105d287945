"""Adaptive steps, against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeq_former.errors import UserError
from diffeq_former.ode.adaptive import AdaptiveSolver


def counted(solver, field, x):
    """Solve, and count the evaluations at times in [0, 1] by a callback."""
    times = []

    def counting(t, x):
        jax.debug.callback(lambda t: times.append(float(t)), t)
        return field(t, x)

    found = jax.jit(lambda x: solver.solve(counting, x))(x)
    jax.effects_barrier()
    assert times and 0 <= min(times) and max(times) <= 1
    return found, len(times)


@pytest.mark.parametrize("name", ["heun", "midpoint", "diffrax:Tsit5"])
def test_the_number_of_evaluations(name):
    """Beside it, diffrax evaluates the field once to choose a first step."""
    solver = AdaptiveSolver(name, 1e-4, 1 / 3)
    solution, found = counted(solver, lambda t, x: -x * x, jnp.array([1.0, 0.5]))
    assert solution.num_evaluations <= found <= solution.num_evaluations + 2


@pytest.mark.parametrize("name", ["heun", "midpoint", "diffrax:Tsit5"])
def test_a_smaller_tolerance_takes_more_evaluations_and_has_a_smaller_error(name):
    x = jnp.array([1.0, 0.2])
    exact = x * jnp.exp(jnp.sin(20.0) / 20)
    solutions = [
        AdaptiveSolver(name, rtol, 0.25).solve(lambda t, x: jnp.cos(20 * t) * x, x)
        for rtol in (1e-2, 1e-3, 1e-5)
    ]
    errors = [float(np.abs(found.x - exact).max()) for found in solutions]
    assert errors[0] > 10 * errors[2] and errors[2] < 1e-4
    assert np.all(np.diff([int(found.num_evaluations) for found in solutions]) > 0)


def test_steps_are_short_where_the_field_changes_fast():
    """Their ends increase from the first step to 1."""

    def field(t, x):
        return jnp.ones_like(x) / (0.01 + (t - 0.5) ** 2)

    solution = AdaptiveSolver("heun", 1e-3, 0.01).solve(field, jnp.ones(2))
    points = np.asarray(solution.points)
    points = np.concatenate([[0], points[np.isfinite(points)]])
    lengths = np.diff(points)
    assert points[-1] == 1 and lengths.min() > 0
    inside = np.abs(points[1:] - 0.5) < 0.05
    assert lengths[inside].max() < 0.35 * lengths.max()


def test_entries_that_do_not_count_do_not_shorten_steps():
    rates, x = jnp.array([1.0, 200.0]), jnp.ones(2)

    def evaluations(counts):
        solver = AdaptiveSolver("heun", 1e-3, 0.001)
        return int(solver.solve(lambda t, x: jnp.cos(rates * t), x, counts)[1])

    whole, first = evaluations(None), evaluations(jnp.array([True, False]))
    assert whole == evaluations(jnp.array([True, True])) > 3 * first


def test_too_many_steps_have_no_result():
    solver = AdaptiveSolver("diffrax:Tsit5", 1e-6, 0.25)
    found = solver.solve(lambda t, x: jnp.cos(1e7 * t) * 1e7 * x, jnp.ones(2))
    assert np.isnan(found.x).all()
    with pytest.raises(UserError, match="rtol=1e-06: diffrax:Tsit5 takes too many"):
        solver.check(reached_end=False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("Tsit5", 1e-3), "solver=Tsit5: expected one of euler, lie_trotter, strang,"),
        (("diffrax:Euler", 1e-3), "method of this name; use one of Bosh3, Dopri5, D"),
        (("heun", -1.0), "rtol=-1: expected a positive tolerance"),
        (("euler", 1e-3), "solver=euler: it has no estimate of its error, by which"),
    ],
)
def test_wrong_solvers(given, message):
    with pytest.raises(UserError, match=message):
        AdaptiveSolver(*given, first_step=0.25)
