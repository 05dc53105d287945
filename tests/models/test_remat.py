"""What the backward pass keeps and what it recomputes; the values stay the same."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TINY, at_other_depths, name, params_of, stabilised, tokens_of

from diffeq_former.config.model_schema import SAVE_WEIGHTS
from diffeq_former.models.remat import POLICIES
from diffeq_former.models.transformer import Transformer


def loss_and_grads(config, params, tokens, rngs=None):
    def loss(params):
        model = Transformer(config, train=rngs is not None)
        logits = model.apply({"params": params}, tokens, rngs=rngs)
        return jnp.square(jax.nn.log_softmax(logits)[..., 0]).mean()

    return jax.jit(jax.value_and_grad(loss))(params)


def assert_trees_close(ours, theirs, rtol=1e-4):
    def check(a, b):
        scale = max(np.abs(b).max(), 1e-6)
        np.testing.assert_allclose(a, b, rtol=0, atol=rtol * scale)

    jax.tree.map(check, ours, theirs)


# A step of the first can generate its weights, which two of the policies save.
GENERATED = dataclasses.replace(at_other_depths()[1], dropout=0.1)
STABILISED = dataclasses.replace(stabilised()[0], dropout=0.1)


@functools.cache
def loss_and_grads_with_dropout(config):
    rngs = {"dropout": jax.random.key(3)}
    return loss_and_grads(config, params_of(config), tokens_of(config), rngs)


@pytest.mark.parametrize(
    "config, remat",
    [
        (GENERATED, "save_attention_and_weights"),
        (STABILISED, "full"),
        (STABILISED, "save_terms"),
        pytest.param(GENERATED, "save_weights", marks=pytest.mark.slow),
        pytest.param(STABILISED, "dots", marks=pytest.mark.slow),
        pytest.param(STABILISED, "save_attention", marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else name(value),
)
def test_remat_changes_no_value(config, remat):
    expected_loss, expected_grads = loss_and_grads_with_dropout(config)
    generate = "per_step" if remat in SAVE_WEIGHTS else "tabulated"
    config = dataclasses.replace(config, remat=remat, generate_weights=generate)
    loss, grads = loss_and_grads_with_dropout(config)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
    assert_trees_close(grads, expected_grads, rtol=1e-5)


@pytest.mark.parametrize("remat", sorted(POLICIES.keys() - {"none"}))
def test_remat_saves_what_its_name_says(remat):
    """Counts what each step leaves for the backward pass, beside its input."""
    config = dataclasses.replace(
        TINY, remat=remat, generate_weights="per_step", block="llama"
    )
    params, tokens_BL = params_of(config), tokens_of(config)

    def loss(params):
        return Transformer(config).apply({"params": params}, tokens_BL).sum()

    attention = (config.num_layers, *tokens_BL.shape, 2, config.head_size)
    kernel = (config.num_layers, 1, config.d_model, config.ff_dim)
    shapes = _stacked_residuals(loss, params)
    assert (attention in shapes) == (remat != "full" and remat != "save_weights")
    assert (kernel in shapes) == (remat in SAVE_WEIGHTS)


def _stacked_residuals(loss, params) -> set[tuple[int, ...]]:
    """Shapes of the forward scan's stacked outputs."""
    jaxpr = jax.make_jaxpr(jax.grad(loss))(params).jaxpr
    scans = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]
    return {v.aval.shape for v in scans[0].outvars}
