"""The PDE simulator of the study is what its docstring says."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mesh_of
from prepared import prepare_words

from diffeq_former.analysis import depth, lyapunov, pde, sensitivity
from diffeq_former.data.pipeline import train_batches
from diffeq_former.experiments.stabilisers import grid, simulator
from diffeq_former.models.transformer import Transformer, outer_params
from diffeq_former.training import state as states
from diffeq_former.training.step import make_train_step

SMALL = grid.Training(num_steps=4, batch_size=4, length=8, d_model=8, num_heads=2)
CELL = grid.Cell(grid.SIMULATOR, 1.0, "none", "1/L", 2, 0.01, 3)
every_variant = pytest.mark.parametrize(
    "changes",
    [{}, {"norm": "head"}, {"norm": "post"}, {"norm": "pre", "residual": 0.0}],
    ids=str,
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return prepare_words(tmp_path_factory.mktemp("words"), 16)


def case_of(dataset, **changes):
    """The model, its first parameters, and the ids of one sequence."""
    cell = dataclasses.replace(CELL, **changes)
    model = grid.model_of(cell, SMALL, dataset)
    with jax.disable_jit():
        params = model.first_state(np.uint32(cell.seed), mesh_of()).params
    ids = np.random.default_rng(0).integers(model.config.model.vocab_size, size=8)
    return model, params, ids


def without_diffusion(params):
    """Of a coefficient that is exactly 0."""
    return params | {
        "weights": params["weights"]
        | {"diffusion": {"scale": jnp.full(CELL.depth, -jnp.inf)}}
    }


def logits(model, params, ids_L):
    c, outer = model.config.model, outer_params(params)
    x_LD = depth.embed(c, outer, ids_L)
    for k in range(c.num_layers):
        weights_S = jax.tree.map(lambda w, k=k: w[k], model.tabulate(params))
        x_LD = model.step(c, weights_S, x_LD)
    return model.logits(c, outer, x_LD)


@pytest.mark.parametrize("residual", (1.0, 0.0))
def test_without_diffusion_it_is_the_transformer_in_steps_of_euler(dataset, residual):
    """With its stabilisers, and the norm before the head that it always has."""
    changes = {"norm": "head", "residual": residual, "step": "1"}
    model, params, ids_L = case_of(dataset, **changes)
    params = without_diffusion(params)
    c = model.config.model
    assert c.stabilisers == grid.Stabilisers(residual, "none")
    assert (c.solver, c.step_size) == ("euler", 1)
    found_LV = logits(model, params, ids_L)
    expected_LV = Transformer(c).apply({"params": params}, ids_L[None])[0]
    np.testing.assert_allclose(found_LV, expected_LV, rtol=1e-4, atol=1e-6)


def test_without_diffusion_its_training_is_the_packages(dataset):
    model, params, _ = case_of(dataset, norm="head")
    config, params = model.config, without_diffusion(params)
    package = params | {"weights": dict(params["weights"])}
    del package["weights"]["diffusion"]
    mesh = mesh_of()
    theirs = states.with_params(config, mesh, package)
    step = make_train_step(config, mesh)
    own_step = jax.jit(functools.partial(model.train_step, mesh=mesh))
    own = simulator.State(params, model._optimizer.init(params))
    batches = train_batches(dataset, batch_size=4, seed=config.seed)
    for batch in itertools.islice(batches, SMALL.num_steps):
        batch = {k: x[:, :8] for k, x in batch.items()}
        theirs, expected = step(theirs, batch)
        own, found = own_step(own, batch)
        for name in ("loss", "grad_norm"):
            assert float(found[name]) == pytest.approx(float(expected[name]), rel=1e-4)
    batches.close()


def test_the_step_is_the_equation_of_the_analysis(dataset):
    """Of the same diffusion in all steps."""
    model, params, ids_L = case_of(dataset)
    c, table = model.config.model, model.tabulate(params)
    x_LD = depth.embed(c, outer_params(params), ids_L)
    expected_LD = pde.states(c, table, x_LD, simulator.FIRST_SHARE / c.step_size / 2)[1]
    found_LD = model.step(c, jax.tree.map(lambda w: w[0], table), x_LD)
    np.testing.assert_allclose(found_LD, expected_LD, rtol=1e-4, atol=1e-7)
    assert float(jnp.abs(found_LD - depth.states(c, table, x_LD)[1]).max()) > 1e-4


@pytest.mark.parametrize("norm", ("none", "head"))
def test_what_is_measured_is_what_is_trained(dataset, norm):
    model, params, ids_L = case_of(dataset, norm=norm)
    c, outer = model.config.model, outer_params(params)
    batch_BL = {"inputs": ids_L[None], "targets": np.roll(ids_L, -1)[None]}
    first_BLD = sensitivity.embed(c, outer, batch_BL["inputs"])
    found, _, _ = sensitivity.measure(
        c,
        outer,
        model.tabulate(params),
        first_BLD,
        batch_BL["targets"],
        model.step,
        model.logits,
    )
    expected = model.loss(params, batch_BL)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_its_exponent_is_that_of_its_own_flow(dataset):
    """By the largest singular value of the whole flow's derivative."""
    model, params, ids_L = case_of(dataset, residual=0.0, step="1")
    c, table = model.config.model, model.tabulate(params)
    x_LD = depth.embed(c, outer_params(params), ids_L)

    def step(x_LD, k):
        return model.step(c, jax.tree.map(lambda w: w[k], table), x_LD)

    states_TLD = jnp.stack([x_LD, step(x_LD, 0), step(step(x_LD, 0), 1)])
    found = lyapunov.coupled(c, table, states_TLD, 8, "whole", 1, model.step)[0]
    flow = jax.jit(jax.jacobian(lambda x_LD: step(step(x_LD, 0), 1)))(x_LD)
    largest = np.linalg.norm(np.reshape(flow, (64, 64)), 2)
    assert float(found) == pytest.approx(np.log(largest) / 2, rel=1e-3)


@pytest.mark.parametrize("step", grid.STEPS)
def test_the_coefficient_is_always_stable(dataset, step):
    c = case_of(dataset, step=step)[0].config.model
    scales = jnp.array([-jnp.inf, -1e3, -1.0, 0.0, 1e3, jnp.inf])
    found = np.asarray(simulator.coefficient(c, scales)) * c.step_size
    assert found.min() == 0 and found.max() == pde.LIMIT
    assert (np.diff(found) >= 0).all()


@every_variant
def test_no_token_sees_later_ones(dataset, changes):
    model, params, ids_L = case_of(dataset, **changes)
    c, table = model.config.model, model.tabulate(params)
    x_LD = depth.embed(c, outer_params(params), ids_L)

    @jax.jit
    @jax.jacrev
    def moved(x_LD):
        for k in range(c.num_layers):
            x_LD = model.step(c, jax.tree.map(lambda w, k=k: w[k], table), x_LD)
        return (x_LD**3).sum(-1)  # post-norms fix the sum and the sum of squares

    moved_LL = np.abs(moved(x_LD)).sum(-1)
    assert (np.triu(moved_LL, 1) == 0).all()
    assert (np.diagonal(moved_LL) > 0).all()


@every_variant
def test_norms_are_only_where_they_are_added(dataset, changes):
    """And kernels are scaled so that a term keeps the size of the state."""
    _, params, _ = case_of(dataset, **changes)
    norm = changes.get("norm", "none")
    assert ("final_norm" in params) == (norm == "head")
    assert ("norm_1" in params["weights"]) == (norm in ("pre", "post"))
    kernel = params["weights"]["ff_out"]["kernel"]
    assert float(kernel.std()) == pytest.approx(32**-0.5, rel=0.1)
