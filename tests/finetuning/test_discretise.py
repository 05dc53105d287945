"""A model cut into layers computes what it did."""

import dataclasses

import jax
import numpy as np
import pytest
from cases import allowed, in_two_lots, name, params_of, shapes_of, tokens_of

from diffeq_former.config import ModelConfig
from diffeq_former.errors import UserError
from diffeq_former.finetuning.discretise import discrete_model, discrete_params
from diffeq_former.models.remat import POLICIES
from diffeq_former.models.transformer import Transformer
from diffeq_former.models.validate import validate_model
from diffeq_former.ode.solvers import SOLVERS

ONE_TIME_A_STEP = [name for name, s in SOLVERS.items() if len(s.nodes) == 1]
CONTINUOUS = [
    c
    for weights in ("hypernetwork", "shared")
    for c in allowed(weights=weights)
    if c.solver in ONE_TIME_A_STEP
]
CONTINUOUS += [
    dataclasses.replace(c, time_pieces=c.num_layers)
    for c in CONTINUOUS
    if name(c) in ("gpt-hypernetwork-strang", "llama-hypernetwork-euler")
]
QUICK = ("gpt-hypernetwork-euler", "llama-hypernetwork-lie_trotter")


@pytest.mark.parametrize(
    "config",
    in_two_lots(CONTINUOUS, lambda c: c.time_pieces or name(c) in QUICK),
    ids=name,
)
def test_logits_are_those_of_the_continuous_model(config):
    params, tokens_BL = params_of(config), tokens_of(config)
    for num_steps in (2, 7):
        model = discrete_model(config, num_steps)
        validate_model(model)
        assert (model.weights, model.num_layers) == ("layer_table", num_steps)
        found = jax.jit(lambda p, n=num_steps: discrete_params(config, p, n))(params)
        assert jax.tree.map(lambda x: x.shape, found) == shapes_of(model)
        assert {x.dtype for x in jax.tree.leaves(found)} == {np.dtype("float32")}
        logits = jax.jit(Transformer(model).apply)({"params": found}, tokens_BL)
        continuous = Transformer(config.at_depth(num_steps))
        expected = jax.jit(continuous.apply)({"params": params}, tokens_BL)
        scale = np.abs(expected).max()
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-6 * scale)


def test_stored_weights_are_not_rounded_to_the_compute_type():
    config = dataclasses.replace(CONTINUOUS[0], dtype="bfloat16")
    params, exact = params_of(config), dataclasses.replace(config, dtype="float32")
    jax.tree.map(
        np.testing.assert_array_equal,
        discrete_params(config, params, 3),
        discrete_params(exact, params, 3),
    )


@pytest.mark.parametrize("remat", POLICIES)
def test_any_way_to_spare_memory_has_a_twin(remat):
    config = ModelConfig(remat=remat, generate_weights="per_step")
    validate_model(config)
    validate_model(discrete_model(config, 6))


@pytest.mark.parametrize(
    "changes, num_steps, message",
    [
        ({}, 0, "num_steps: expected 1 or more, got 0"),
        ({"weights": "layer_table"}, 6, "this model is a layer_table already, of 12"),
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
