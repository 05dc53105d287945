"""Integration by methods of diffrax, against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeq_former.errors import UserError
from diffeq_former.ode.diffrax_solver import DiffraxSolver, parse


def counted(solver, field, x):
    """Solve eagerly, and count the evaluations at times in [0, 1] by a callback."""
    times = []

    def counting(t, x):
        jax.debug.callback(lambda t: times.append(float(t)), t)
        return field(t, x)

    found, evaluations = jax.jit(lambda x: solver.solve(counting, x))(x)
    jax.effects_barrier()
    assert times and 0 <= min(times) and max(times) <= 1
    return found, int(evaluations), len(times)


@pytest.mark.parametrize("name", ["Heun", "Tsit5"])
@pytest.mark.parametrize("rtol", [0.0, 1e-4])
def test_the_number_of_evaluations(name, rtol):
    """Beside it, diffrax evaluates the field once to choose a first step."""
    solver = DiffraxSolver(name, 3, rtol)
    _, stated, found = counted(solver, lambda t, x: -x * x, jnp.array([1.0, 0.5]))
    assert stated <= found <= stated + 2


def test_a_smaller_tolerance_takes_more_evaluations_and_has_a_smaller_error():
    x = jnp.array([1.0, 0.2])
    exact = x * jnp.exp(jnp.sin(20.0) / 20)
    solutions = [
        DiffraxSolver("Tsit5", 4, rtol).solve(lambda t, x: jnp.cos(20 * t) * x, x)
        for rtol in (1e-2, 1e-4, 1e-6)
    ]
    errors = [float(np.abs(found - exact).max()) for found, _ in solutions]
    assert errors[0] > 5 * errors[1] > 25 * errors[2] and errors[2] < 1e-5
    assert np.all(np.diff([int(n) for _, n in solutions]) > 0)


def test_too_many_steps_have_no_result():
    solver = DiffraxSolver("Tsit5", 4, 1e-6)
    found, _ = solver.solve(lambda t, x: jnp.cos(1e7 * t) * 1e7 * x, jnp.ones(2))
    assert np.isnan(found).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("Tsit5", 4, 0.0), "solver=Tsit5: expected the name of a method of diffrax"),
        (("diffrax:Euler", 4, 0.0), "method of this name; use one of Bosh3, Dopri5, D"),
        (("diffrax:Tsit5", 4, -1.0), "rtol=-1: expected a positive tolerance"),
        ((None, 4, 1e-3), "rtol=0.001: the steps of the model's own solver are not"),
    ],
)
def test_wrong_solvers(given, message):
    with pytest.raises(UserError, match=message):
        parse(*given)
