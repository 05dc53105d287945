"""Orders of convergence by slope, in float64, against closed forms."""

import functools
import sys

import numpy as np
import pytest

from diffeq_former.errors import UserError
from diffeq_former.ode import reversible
from diffeq_former.ode.solvers import SOLVERS, RungeKutta, Splitting, get_solver

# Each field is its terms f(t, x) and its exact solution at t = 1 from `START`.
START = {"rotation": np.array([0.8, -0.3]), "logistic": np.array([0.3])}


def rate(t):
    return 1.0 + np.cos(3.0 * t)


def rate_integral(t):
    return t + np.sin(3.0 * t) / 3.0


def rotation():
    """(q, p)' = rate(t) (p, -q): two terms, each of which moves one coordinate."""
    angle = rate_integral(1.0)
    cos, sin = np.cos(angle), np.sin(angle)
    terms = (
        lambda t, x: rate(t) * np.array([x[1], 0.0]),
        lambda t, x: rate(t) * np.array([0.0, -x[0]]),
    )
    return terms, np.array([[cos, sin], [-sin, cos]]) @ START["rotation"]


def logistic():
    """x' = rate(t) (x - x^2), whose terms bend along themselves."""
    odds = START["logistic"] / (1 - START["logistic"]) * np.exp(rate_integral(1.0))
    terms = (lambda t, x: rate(t) * x, lambda t, x: -rate(t) * x * x)
    return terms, odds / (1 + odds)


FIELDS = {"rotation": rotation, "logistic": logistic}


def slope(solver, field, solve) -> float:
    """The exponent with which the error of a solution falls with the steps."""
    terms, exact = FIELDS[field]()
    counts = np.array([16, 32, 64, 128])

    def step(x, start, h):
        times = [start + node * h for node in solver.nodes]
        at = [
            lambda node, x, term=term: np.asarray(term(times[node], x))
            for term in terms
        ]
        return solver.step(at, x, h)

    errors = [np.abs(solve(step, START[field], n) - exact).max() for n in counts]
    return -np.polyfit(np.log(counts), np.log(errors), 1)[0]


def plain(step, x, num_steps):
    for k in range(num_steps):
        x = step(x, k / num_steps, 1 / num_steps)
    return x


def coupled(step, x, num_steps):
    """Steps of the coupled method, which has the order of the solver."""

    def increment(x, start, h):
        return step(x, start, h) - x

    state, h = reversible.Coupled(x, x), 1 / num_steps
    for k in range(num_steps):
        forward = functools.partial(increment, start=k * h, h=h)
        backward = functools.partial(increment, start=(k + 1) * h, h=-h)
        state = reversible.step(forward, backward, state)
    return state.y


@pytest.mark.parametrize("solve", [plain, coupled])
@pytest.mark.parametrize("name", SOLVERS)
def test_order(name, solve):
    found = slope(SOLVERS[name], "rotation", solve)
    assert found == pytest.approx(SOLVERS[name].order, abs=0.15)


RUNGE_KUTTA = [n for n, s in SOLVERS.items() if isinstance(s, RungeKutta)]
SPLITTINGS = [n for n, s in SOLVERS.items() if isinstance(s, Splitting)]


@pytest.mark.parametrize("name", RUNGE_KUTTA)
def test_runge_kutta_keeps_its_order_on_any_field(name):
    order = SOLVERS[name].order
    assert slope(SOLVERS[name], "logistic", plain) == pytest.approx(order, abs=0.15)


@pytest.mark.parametrize("name", ["Heun", "Bosh3", "Tsit5"])
def test_methods_of_diffrax_have_their_order(name):
    """On this field, those of high order are a little better."""
    solver = get_solver(f"diffrax:{name}")
    excess = slope(solver, "logistic", plain) - solver.order
    assert -0.15 < excess < 0.35


def test_without_diffrax(monkeypatch):
    monkeypatch.setitem(sys.modules, "diffrax", None)
    expected = r"^solver=diffrax:Tsit5: the package diffrax is missing: .*\[ode\]'$"
    with pytest.raises(UserError, match=expected):
        get_solver("diffrax:Tsit5")


def test_methods_of_diffrax_have_no_stage_that_is_not_used():
    """The last of Tsit5's seven is the first of the next step."""
    solver = get_solver("diffrax:Tsit5")
    assert (solver.order, len(solver.b)) == (5, 6) and all(solver.b)


@pytest.mark.parametrize("name", SPLITTINGS)
def test_splittings_take_euler_substeps(name):
    """Their order needs terms that Euler integrates exactly; else it is 1."""
    assert slope(SOLVERS[name], "logistic", plain) == pytest.approx(1, abs=0.15)


def test_the_times_are_those_of_the_methods():
    """Euler and Lie-Trotter take the weights at the right end, as the authors do."""
    assert {name: solver.nodes for name, solver in SOLVERS.items()} == {
        "euler": (1,),
        "lie_trotter": (1,),
        "strang": (0.5,),
        "midpoint": (0, 0.5),
        "heun": (0, 1),
        "rk4": (0, 0.5, 1),
    }


def test_the_orders_are_those_of_the_methods():
    orders = {name: solver.order for name, solver in SOLVERS.items()}
    assert orders == {
        "euler": 1,
        "lie_trotter": 1,
        "strang": 2,
        "midpoint": 2,
        "heun": 2,
        "rk4": 4,
    }
