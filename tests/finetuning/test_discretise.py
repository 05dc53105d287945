"""A model in layers computes what it did."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from cases import TINY, name, params_of, shapes_of, tokens_of

from diffeq_former.config import ModelConfig
from diffeq_former.config.model_validation import validate_model
from diffeq_former.errors import UserError
from diffeq_former.finetuning.discretise import discrete_model, discrete_params
from diffeq_former.models.remat import POLICIES
from diffeq_former.models.transformer import Transformer
from diffeq_former.ode.solvers import SOLVERS

ONE_TIME_A_STEP = [name for name, s in SOLVERS.items() if len(s.nodes) == 1]
# Every two of block, source and solver.
CASES = [
    dataclasses.replace(TINY, block=block, weights=weights, solver=solver)
    for block, weights, solver in (
        ("gpt", "hypernetwork", "euler"),
        ("llama", "hypernetwork", "lie_trotter"),
        ("gpt", "hypernetwork", "strang"),
        ("llama", "shared", "euler"),
        ("gpt", "shared", "lie_trotter"),
        ("llama", "shared", "strang"),
        ("llama", "layer_table", "euler"),
        ("gpt", "layer_table", "lie_trotter"),
        ("gpt", "layer_table", "strang"),
        ("llama", "layer_table", "rk4"),
    )
]


def test_every_solver_of_one_time_a_step_is_among_the_cases():
    assert {c.solver for c in CASES} >= set(ONE_TIME_A_STEP)


@functools.partial(jax.jit, static_argnums=(0, 1))
def discrete_and_source(config, num_steps, params):
    """The discrete model's parameters, and the logits of both models."""
    made = discrete_params(config, params, num_steps)
    discrete = Transformer(discrete_model(config, num_steps))
    source, tokens_BL = Transformer(config.at_depth(num_steps)), tokens_of(config)
    return (
        made,
        discrete.apply({"params": made}, tokens_BL),
        source.apply({"params": params}, tokens_BL),
    )


@pytest.mark.parametrize("config", CASES, ids=name)
def test_logits_are_those_of_the_model(config):
    """In fewer steps than it was trained with, and in more."""
    num_steps = 2 if config.block == "gpt" else 7
    model = discrete_model(config, num_steps)
    validate_model(model)
    assert (model.weights, model.num_layers) == ("layer_table", num_steps)
    found, logits, expected = discrete_and_source(config, num_steps, params_of(config))
    assert jax.tree.map(lambda x: x.shape, found) == shapes_of(model)
    assert {x.dtype for x in jax.tree.leaves(found)} == {np.dtype("float32")}
    scale = np.abs(expected).max()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-6 * scale)


def test_stored_weights_are_not_rounded_to_the_compute_type():
    config = dataclasses.replace(CASES[0], dtype="bfloat16")
    params, exact = params_of(config), dataclasses.replace(config, dtype="float32")
    jax.tree.map(
        np.testing.assert_array_equal,
        discrete_params(config, params, 3),
        discrete_params(exact, params, 3),
    )


@pytest.mark.parametrize("num_steps", [2, 5, 7])
@pytest.mark.parametrize("config", CASES[:2], ids=name)
def test_the_layers_are_at_other_depths_what_the_hypernetwork_is(config, num_steps):
    params, T = params_of(config), config.num_layers
    layers = discrete_model(config, T).at_depth(num_steps)
    made, tokens_BL = discrete_params(config, params, T), tokens_of(config)
    found = Transformer(layers).apply({"params": made}, tokens_BL)
    model = Transformer(config.at_depth(num_steps))
    expected = model.apply({"params": params}, tokens_BL)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * scale)


@pytest.mark.parametrize("remat", POLICIES)
def test_every_remat_policy_has_a_discrete_counterpart(remat):
    config = ModelConfig(remat=remat, generate_weights="per_step")
    validate_model(config)
    validate_model(discrete_model(config, 6))


@pytest.mark.parametrize(
    "changes, num_steps, message",
    [
        ({}, 0, "num_steps: expected 1 or more, got 0"),
        *[
            (
                {"solver": solver},
                6,
                f"this model's solver is {solver}, whose steps need",
            )
            for solver in sorted(SOLVERS.keys() - set(ONE_TIME_A_STEP))
        ],
    ],
    ids=str,
)
def test_refuses(changes, num_steps, message):
    with pytest.raises(UserError) as refusal:
        discrete_model(ModelConfig(**changes), num_steps)
    assert str(refusal.value).startswith(message) and "\n" not in str(refusal.value)
