"""Early exit, against a loop over steps and tokens."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TINY, model, params_of, tokens_of

from diffeq_former.errors import UserError
from diffeq_former.inference.early_exit import integrate
from diffeq_former.models.transformer import Transformer

DEEP = dataclasses.replace(TINY, num_layers=6, horizon=6.0)


def found(config, threshold):
    module, params = Transformer(config), params_of(config)
    table = module.apply({"params": params}, method="tabulate")
    run = jax.jit(lambda *given: integrate(module, *given))
    return run(params, table, tokens_of(config), threshold)


def expected(config, threshold):
    """Return states and exit steps, by Euler steps along the vector field."""
    bound, tokens_BL = {"params": params_of(config)}, tokens_of(config)
    apply, L = Transformer(config).apply, config.num_layers

    def log_p(x_BLD):
        x_BLD = apply(bound, jnp.asarray(x_BLD), method="normalise")
        return np.asarray(jax.nn.log_softmax(apply(bound, x_BLD, method="logits")))

    field = jax.jit(lambda t, x_BLD: apply(bound, t, x_BLD, method="field"))
    x_BLD = np.asarray(apply(bound, tokens_BL, method="embed"))
    slope_BLD, steps_BL = np.zeros_like(x_BLD), np.full(tokens_BL.shape, L)
    before_BLV = None
    for k in range(L):
        new_BLD = np.asarray(field(k / L, x_BLD))
        for place in np.ndindex(*tokens_BL.shape):
            if k < steps_BL[place]:
                slope_BLD[place] = new_BLD[place]
        x_BLD = x_BLD + slope_BLD / L
        after_BLV = log_p(x_BLD + (1 - (k + 1) / L) * slope_BLD)
        if before_BLV is not None:
            change_BL = (np.exp(after_BLV) * (after_BLV - before_BLV)).sum(-1)
            steps_BL[(change_BL < threshold) & (steps_BL > k)] = k + 1
        before_BLV = after_BLV
    return x_BLD, steps_BL


def test_tokens_exit_each_at_its_step():
    (x_BLD, steps_BL), (expected_BLD, expected_BL) = (
        function(DEEP, 0.1) for function in (found, expected)
    )
    assert len(np.unique(steps_BL)) > 2
    np.testing.assert_array_equal(steps_BL, expected_BL)
    scale = np.abs(expected_BLD).max()
    np.testing.assert_allclose(x_BLD / scale, expected_BLD / scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "config", [DEEP, model("llama", "layer_table", "lie_trotter"), DEEP.at_depth(3)]
)
def test_without_an_exit_states_are_the_models(config):
    x_BLD, steps_BL = found(config, 0.0)
    assert (steps_BL == config.num_layers).all()
    params, tokens_BL = params_of(config), tokens_of(config)
    apply, bound = Transformer(config).apply, {"params": params}
    normal_BLD = apply(bound, x_BLD, method="normalise")
    hidden_BLD = apply(bound, tokens_BL, method="hidden")
    np.testing.assert_allclose(normal_BLD, hidden_BLD, rtol=0, atol=1e-5)


def test_reversible_steps_are_refused():
    with pytest.raises(UserError, match="exit_threshold: a model with reversible"):
        found(dataclasses.replace(TINY, backward="reversible"), 0.1)
