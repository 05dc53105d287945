"""Integration over depth: gradients of backward passes, and the vector field."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TINY, at_other_depths, model, name, params_of, tokens_of

from diffeq_former.config import ModelConfig
from diffeq_former.models.transformer import Transformer
from diffeq_former.models.transport import COSTS, cost
from diffeq_former.ode import reversible
from diffeq_former.ode.solvers import SOLVERS

DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1}
DEEP = dataclasses.replace(TINY, num_layers=7)


def loss_and_gradients(c: ModelConfig):
    """Those of a loss with the transport cost, whose gradient passes all steps."""
    tokens_BL, rngs = tokens_of(c), {"dropout": jax.random.key(3)}

    def objective(params):
        run = Transformer(c, train=True).apply
        logits_BLV, sown = run(
            {"params": params}, tokens_BL, rngs=rngs, mutable=[COSTS]
        )
        loss = jnp.square(jax.nn.log_softmax(logits_BLV)[..., 0]).mean()
        return loss + 0.1 * cost(sown).mean()

    return jax.jit(jax.value_and_grad(objective))(params_of(c))


def relative_error(ours, theirs) -> float:
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    errors, norms = zip(
        *((jnp.square(a - b).sum(), jnp.square(b).sum()) for a, b in pairs), strict=True
    )
    return float(jnp.sqrt(sum(errors) / sum(norms)))


@pytest.mark.parametrize(
    ("config", "num_checkpoints"),
    [
        (DEEP, 1),
        (DEEP, 3),
        (dataclasses.replace(DEEP, remat="full", block="llama", solver="heun"), 2),
        (at_other_depths()[1], 2),
    ],
)
def test_binomial_checkpointing_changes_no_value(config, num_checkpoints):
    less = {"backward": "binomial", "num_checkpoints": num_checkpoints}
    ours = loss_and_gradients(dataclasses.replace(config, **less))
    theirs = loss_and_gradients(config)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-6)
    assert relative_error(ours[1], theirs[1]) < 1e-6


REVERSIBLE = [
    *(model("gpt", "hypernetwork", solver) for solver in SOLVERS),
    model("llama", "layer_table", "lie_trotter", num_layers=7),  # steps of length 1
    model("llama", "shared", "strang", remat="full"),
    at_other_depths()[1],
    dataclasses.replace(DEEP, dtype="bfloat16"),  # of the terms, not of the states
]


@pytest.mark.parametrize("config", REVERSIBLE, ids=name)
def test_reversible_gradients_are_those_of_stored_states(config, monkeypatch):
    config = dataclasses.replace(config, backward="reversible", **DROPOUT)
    ours = loss_and_gradients(config)
    stored = reversible.integrate.__wrapped__  # differentiated by JAX
    monkeypatch.setattr(reversible, "integrate", stored)
    theirs = loss_and_gradients(config)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-6)
    limit = 1e-5 if config.dtype == "float32" else 5e-3
    assert relative_error(ours[1], theirs[1]) < limit


@pytest.mark.parametrize("backward", ["binomial", "reversible"])
def test_the_same_values_in_training_and_afterwards(backward):
    c = dataclasses.replace(DEEP, backward=backward)
    arguments = {"params": params_of(c)}, tokens_of(c)
    training, afterwards = (
        Transformer(config, train=train).apply(*arguments)
        for config, train in ((c, True), (c.for_inference(), False))
    )
    np.testing.assert_allclose(training, afterwards, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        model("gpt", "hypernetwork", "heun", document_masking=True, end_of_text=3),
        model("llama", "shared", "rk4", horizon=2.0),
    ],
    ids=name,
)
def test_the_field_is_what_the_solver_integrates(config):
    """Steps of the solver through it end where the model does."""
    params, tokens_BL = params_of(config), tokens_of(config)
    apply, variables = Transformer(config).apply, {"params": params}

    @jax.jit
    def ours_and_the_models(params):
        def field(t, x_BLD):
            return apply(variables, t, x_BLD, tokens_BL=tokens_BL, method="field")

        solver, h = SOLVERS[config.solver], 1 / config.num_layers
        x_BLD = apply(variables, tokens_BL, method="embed")
        for k in range(config.num_layers):
            times = [(k + node) * h for node in solver.nodes]
            x_BLD = solver.step([lambda i, x, t=times: field(t[i], x)], x_BLD, h)
        found_BLD = apply(variables, x_BLD, method="normalise")
        return found_BLD, apply(variables, tokens_BL, method="hidden")

    np.testing.assert_allclose(*ours_and_the_models(params), rtol=0, atol=2e-5)


def test_the_field_on_a_segment_is_that_of_its_steps():
    """At its left end and within it, but not at its right end; at any depth."""
    params, S = params_of(TINY), TINY.num_layers
    x_BLD = np.ones((1, 2, TINY.d_model), np.float32)
    field = functools.partial(Transformer(TINY.at_depth(2)).apply, {"params": params})
    first, inside, right, last, end = (
        np.asarray(field(t, x_BLD, method="field"))
        for t in (1 / S, 1.5 / S, 2 / S, 1 - 0.5 / S, 1.0)
    )
    np.testing.assert_array_equal(first, inside)
    np.testing.assert_array_equal(last, end)
    assert np.abs(right - inside).max() > 1e-3
