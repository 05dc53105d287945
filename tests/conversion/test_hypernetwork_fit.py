"""Layers as values of a weight function."""

import dataclasses

import jax
import numpy as np
import pytest
from cases import TINY, params_of, shapes_of, tokens_of

from diffeq_former.config.model_validation import validate_model
from diffeq_former.conversion.hypernetwork_fit import continuous_model, fit
from diffeq_former.models.transformer import Transformer
from diffeq_former.ode.grid import uniform

LAYERS = dataclasses.replace(
    TINY,
    num_layers=6,
    num_frequencies=128,
    weights="layer_table",
    solver="lie_trotter",
)
LLAMA = dataclasses.replace(LAYERS, block="llama", num_kv_heads=1)


def fitted(layers, time_embed_dim):
    params = params_of(layers)
    model = continuous_model(layers, time_embed_dim)
    validate_model(model)
    return model, params, *fit(model, params)


def table(model, params):
    found = jax.jit(
        lambda p: Transformer(model).apply({"params": p}, method="tabulate")
    )
    return jax.tree.map(lambda w: np.asarray(w)[:, 0], found(params))


CASES = [(layers, dim) for dim in (6, 9, 24) for layers in (LAYERS, LLAMA)]


@pytest.mark.parametrize(
    "layers, time_embed_dim",
    [pytest.param(*c, marks=[] if c[1] == 6 else pytest.mark.slow) for c in CASES],
)
def test_every_layer_comes_back(layers, time_embed_dim):
    """And so do the logits, to the rounding of sums of a few terms."""
    model, params, found, errors = fitted(layers, time_embed_dim)
    assert jax.tree.map(np.shape, found) == shapes_of(model)
    assert {x.dtype.name for x in jax.tree.leaves(found)} == {"float32"}
    assert max(errors.values()) < 1e-6
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=3e-6),
        table(model, found),
        params["weights"],
    )
    tokens_BL = tokens_of(layers)
    expected = jax.jit(Transformer(layers).apply)({"params": params}, tokens_BL)
    logits = jax.jit(Transformer(model).apply)({"params": found}, tokens_BL)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5 * scale)


def test_between_two_layers_are_means_of_them():
    """Every second of twice as many times is new."""
    model, params, found, _ = fitted(LAYERS, 6)
    apply, variables = Transformer(model).apply, {"params": found}
    finer = apply(variables, uniform(12, (1.0,)), method="tabulate")
    kernels = finer["ff_in"]["kernel"][:, 0]
    layers = params["weights"]["ff_in"]["kernel"]
    np.testing.assert_allclose(kernels[1::2], layers, rtol=0, atol=3e-6)
    means = (layers[1:] + layers[:-1]) / 2
    left = np.linalg.norm(kernels[2::2] - means) / np.linalg.norm(means)
    assert left < 0.3  # the layers here are independent: no weight is near another


@pytest.mark.slow
@pytest.mark.parametrize("layers", [LAYERS, LLAMA], ids=["gpt", "llama"])
def test_fewer_dimensions_say_how_far_off_they_are(layers):
    model, params, found, errors = fitted(layers, 2)
    made = table(model, found)
    for name, unit in params["weights"].items():
        far = [
            np.linalg.norm(made[name][key] - w) / np.linalg.norm(w)
            for key, w in unit.items()
        ]
        assert errors[name] == pytest.approx(max(far), rel=1e-4)
    assert 0.1 < min(errors.values()) <= max(errors.values()) < 1


def test_layers_on_a_line_need_two_dimensions():
    """Weights that move evenly with depth."""
    params = params_of(LAYERS)
    steps = np.arange(6.0)

    def line(w):
        slopes = steps.reshape(-1, *[1] * (w.ndim - 1))
        return np.asarray(w[:1] + slopes * w[1:2], np.float32)

    params |= {"weights": jax.tree.map(line, params["weights"])}
    _, errors = fit(continuous_model(LAYERS, 3), params)
    whole = {n: e for n, e in errors.items() if not n.startswith("norm")}
    assert max(whole.values()) < 0.1
