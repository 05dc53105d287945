"""The equation against closed forms of the heat equation, and against the model."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TINY, mesh_of, params_of, tokens_of

from diffeq_former.analysis import depth, pde
from diffeq_former.analysis.loaded_model import LoadedModel
from diffeq_former.errors import UserError
from diffeq_former.ode.solvers import SOLVERS

every_solver = pytest.mark.parametrize("solver", SOLVERS)
every_stencil = pytest.mark.parametrize("stencil", pde.STENCILS)


def heat(*arguments):
    """Step by step: each is quicker than to compile them all."""
    with jax.disable_jit():
        return np.asarray(pde.heat(*arguments))


def mode(L, waves):
    """A wave that no-flux ends leave alone, at the middles of L cells."""
    return jnp.cos(math.pi * waves * (jnp.arange(L) + 0.5) / L)[:, None]


def slope(counts, errors):
    return -np.polyfit(np.log(counts), np.log(errors), 1)[0]


@every_solver
def test_order_in_time(x64, solver):
    """Of the decay of a discrete mode, whose rate is -4 sin(k / 2)^2."""
    x_LD, diffusion, time = mode(12, 5), 1.5, 1.0
    rate = -4 * diffusion * math.sin(5 * math.pi / 24) ** 2
    counts, errors = (16, 32), []
    for n in counts:
        found = heat(x_LD, diffusion, time, n, solver, "symmetric")
        errors.append(float(jnp.abs(found - math.exp(rate * time) * x_LD).max()))
    # The splittings take Euler's substeps.
    order = 1 if solver in ("lie_trotter", "strang") else SOLVERS[solver].order
    assert slope(counts, errors) == pytest.approx(order, abs=0.15)


def test_order_in_space(x64):
    """A cosine decays as exp(-diffusion k^2 t); L cells on an interval of length 1."""
    counts, errors = (16, 32), []
    for L in counts:
        x_LD, of_x = mode(L, 2), 0.02
        found = pde.heat(x_LD, of_x * L**2, 1.0, 400, "rk4", "symmetric")
        exact = math.exp(-of_x * (2 * math.pi) ** 2) * x_LD
        errors.append(float(jnp.abs(found - exact).max()))
    assert slope(counts, errors) == pytest.approx(2, abs=0.1)


@every_solver
def test_nothing_flows_through_the_ends(x64, solver):
    x_LD = jnp.asarray(np.random.default_rng(0).normal(size=(9, 3)))
    found = heat(x_LD, 2.0, 3.0, 12, solver, "symmetric")
    np.testing.assert_allclose(found.sum(0), x_LD.sum(0), atol=1e-12)
    assert float(jnp.abs(found - x_LD).max()) > 0.1


def test_the_causal_stencil_spreads_an_impulse_as_a_poisson_process(x64):
    """Of rate 2 * diffusion: its variance is that of the heat kernel."""
    L, diffusion, time = 60, 0.8, 5.0
    impulse_LD = jnp.zeros((L, 1)).at[10].set(1.0)
    found_L = pde.heat(impulse_LD, diffusion, time, 400, "rk4", "causal")[:, 0]
    mean = 2 * diffusion * time
    expected = [mean**n * math.exp(-mean) / math.factorial(n) for n in range(L - 10)]
    np.testing.assert_allclose(found_L[10:], expected, atol=1e-9)
    np.testing.assert_array_equal(found_L[:10], 0)
    places_L = np.arange(L) - 10
    assert (found_L @ (places_L - mean) ** 2) == pytest.approx(mean, rel=1e-6)


@every_solver
@every_stencil
def test_at_the_limit_no_step_makes_new_extremes(x64, solver, stencil):
    """And one that is everywhere the same, in the last column, stays."""
    x_LD = np.random.default_rng(1).choice([-1.0, 1.0], (30, 8))
    x_LD[:, -1] = 1.0
    found = heat(jnp.asarray(x_LD), 2 * pde.LIMIT, 1.0, 2, solver, stencil)
    assert float(jnp.abs(found).max()) <= 1 + 1e-12
    np.testing.assert_allclose(found[:, -1], 1, rtol=1e-12)


def test_the_one_sided_second_difference_grows(x64):
    """Why it is no stencil here: its shortest wave, by e^(4 t)."""
    L, n = 64, 2000
    shift = np.eye(L, k=-1)
    step = np.eye(L) + (np.eye(L) - 2 * shift + shift @ shift) / n
    x_L = (-1.0) ** np.arange(L)
    for _ in range(n):
        x_L = step @ x_L
    assert np.abs(x_L[30:]).max() == pytest.approx(math.exp(4), rel=0.02)


@every_solver
@every_stencil
def test_too_long_steps_are_refused(solver, stencil):
    x_LD = jnp.zeros((3, 1))
    with pytest.raises(UserError, match="diffusion 6: expected 0 to 5, as explicit"):
        heat(x_LD, 6.0, 1.0, 10, solver, stencil)
    with pytest.raises(UserError, match="diffusion -1: expected 0 to 5"):
        heat(x_LD, -1.0, 1.0, 10, solver, stencil)


def case_of(**changes):
    config = dataclasses.replace(TINY, **changes)
    model = LoadedModel("run", config, params_of(config), None, mesh_of())
    ids_L = tokens_of(config, batch=1)[0]
    return config, model.table, depth.embed(config, model.outer, ids_L)


@pytest.mark.parametrize(
    "changes",
    [{}, {"solver": "strang"}, {"block": "llama", "solver": "rk4"}],
    ids=str,
)
def test_without_diffusion_it_is_the_model(changes):
    case = case_of(**changes)
    found, expected = pde.states(*case, 0.0), depth.states(*case)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_diffusion_is_added_to_the_model():
    """Of one step of Euler's, written out."""
    c, table, x_LD = case_of(num_layers=1)
    found_LD = pde.states(c, table, x_LD, 0.4)[1] - depth.states(c, table, x_LD)[1]
    before_LD = np.concatenate([x_LD[:1], x_LD[:-1]])
    np.testing.assert_allclose(found_LD, 0.8 * (before_LD - x_LD), atol=1e-5)


@every_stencil
def test_causality(stencil):
    """Of the model's equation, by gradient: the symmetric stencil looks ahead."""
    c, table, x_LD = case_of(block="llama", solver="lie_trotter")

    def end(x_LD):
        return pde.states(c, table, x_LD, 0.3, stencil)[-1].sum(-1)

    moved_LL = np.abs(jax.jit(jax.jacrev(end))(x_LD)).sum(-1)
    looks_ahead = bool((np.triu(moved_LL, 1) > 0).any())
    assert looks_ahead == (stencil == "symmetric")
    assert (np.diagonal(moved_LL) > 0).all()
