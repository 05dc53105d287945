"""Coupled layers against W_k = B + D_k, whose B and D_k are updated on their own."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TINY

from diffeq_former.config import Config, OptimizerConfig
from diffeq_former.config.validation import validate
from diffeq_former.errors import UserError
from diffeq_former.models.blocks import linear_specs
from diffeq_former.training.optimizer import make_optimizer

COUPLING = 0.7
C = OptimizerConfig(learning_rate=0.1, weight_decay=0.0, warmup_fraction=0.0)
MODEL = dataclasses.replace(TINY, weights="layer_table", solver="lie_trotter")


def trained(c: OptimizerConfig, params: dict, gradients: list[dict]) -> dict:
    optimizer = make_optimizer(c, 10, MODEL)
    state = optimizer.init(params)
    for gradient in gradients:
        updates, state = optimizer.update(gradient, state, params)
        params = jax.tree.map(jnp.add, params, updates)
    return params


def gradients_of(shape: tuple, seed: int) -> dict:
    random = np.random.default_rng(seed)
    return {
        "weights": {"ff_in": {"kernel": jnp.asarray(random.normal(size=shape))}},
        "final_norm": {"scale": jnp.asarray(random.normal(size=3))},
    }


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_coupled_layers_are_a_sum_of_two_parameters(name):
    shape = (MODEL.num_layers, *linear_specs(MODEL)["ff_in"].kernel)
    gradients = [gradients_of(shape, seed) for seed in range(3)]
    zeros = jax.tree.map(jnp.zeros_like, gradients[0])
    c = dataclasses.replace(C, name=name)
    coupled = dataclasses.replace(c, layer_coupling=COUPLING)
    found = trained(coupled, zeros, gradients)
    own = trained(c, zeros, gradients)
    # One layer, whose gradient is the mean.
    means = [jax.tree.map(lambda g: g.mean(0, keepdims=True), g) for g in gradients]
    base = trained(c, jax.tree.map(jnp.zeros_like, means[0]), means)
    expected, shared = (tree["weights"]["ff_in"]["kernel"] for tree in (own, base))
    np.testing.assert_allclose(
        found["weights"]["ff_in"]["kernel"],
        expected + COUPLING * np.asarray(shared),
        atol=1e-5,
    )
    np.testing.assert_array_equal(
        found["final_norm"]["scale"], own["final_norm"]["scale"]
    )


def test_the_kernel_of_a_gradient_step():
    """With D the identity: dW = -lr K G with K = I + coupling / L."""
    L, eps = MODEL.num_layers, 1e6  # Adam's direction with a huge eps is g / eps
    c = dataclasses.replace(C, eps=eps, layer_coupling=COUPLING, clip_norm=0.0)
    gradient = gradients_of((L, 16, 24), 0)
    found = trained(c, jax.tree.map(jnp.zeros_like, gradient), [gradient])
    kernel = np.eye(L) + COUPLING / L
    expected = np.tensordot(kernel, gradient["weights"]["ff_in"]["kernel"], 1)
    np.testing.assert_allclose(
        found["weights"]["ff_in"]["kernel"] * -eps / 0.1, expected, rtol=1e-3, atol=1e-3
    )


def test_only_layers_of_their_own_are_coupled():
    coupled = dataclasses.replace(C, layer_coupling=COUPLING)
    with pytest.raises(UserError, match="config.optimizer.layer_coupling: only layers"):
        validate(Config(model=TINY, optimizer=coupled))
    validate(Config(model=MODEL, optimizer=coupled))
