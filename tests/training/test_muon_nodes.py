"""Muon in weight space, where steps of training are at other times than its moments."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TINY, params_of

from diffeq_former.config import Config, OptimizerConfig
from diffeq_former.hardware import CPU
from diffeq_former.models.grid import default_grid
from diffeq_former.models.transformer import Transformer
from diffeq_former.training.bank_gradient import BankGradient
from diffeq_former.training.muon import SINGULAR
from diffeq_former.training.parts import Parts, partition
from diffeq_former.training.update import UPDATE, Update

C = OptimizerConfig(
    name="weight_space_muon",
    learning_rate=0.1,
    warmup_fraction=0.0,
    weight_decay=0.0,
    clip_norm=0.0,
)
MODELS = {
    "continuous": dataclasses.replace(TINY, time_embed_dim=8, solver="strang"),
    "segments": dataclasses.replace(TINY, base=False),
}


def coefficients(c):
    variables = {"params": params_of(c)}
    return Transformer(c).apply(variables, default_grid(c), method="coefficients")


def gradients_of(params: Parts, u: dict, kernels: dict) -> Parts:
    rest = jax.tree.map(jnp.zeros_like, params.rest)
    banks = {
        name: BankGradient(u[name], jnp.asarray(kernels[name], jnp.float32))
        for name in params.banks
    }
    return Parts(rest=rest, banks=banks, frozen={})


def updated(update: Update, opt_state, params: Parts, gradients: Parts):
    apply = jax.jit(functools.partial(update.apply, hardware=CPU))
    return apply(gradients, jnp.float32(1.0), opt_state, params, jnp.int32(UPDATE))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("num_steps", [2, 6])
def test_the_gradient_of_a_node_is_that_of_all_steps_by_interpolation(name, num_steps):
    """W(s) = sum_k c_k(s) W(t_k), with the smallest changes of F and B."""
    c, random = MODELS[name], np.random.default_rng(0)
    other = c.at_depth(num_steps)
    params = partition(Config(), params_of(c))
    nodes, times = coefficients(c), coefficients(other)
    kernels = {
        name: random.normal(size=(num_steps, *bank.shape[1:]))
        for name, bank in params.banks.items()
    }

    def features(u_TE):
        ones = np.ones((len(u_TE), int(c.base)))
        return np.concatenate([np.asarray(u_TE, np.float64), ones], 1)

    def interpolate(name):
        at_nodes, at_times = features(nodes[name]).T, features(times[name]).T
        weights_NT = np.linalg.lstsq(at_nodes, at_times, rcond=SINGULAR**0.5)[0]
        return np.tensordot(weights_NT, kernels[name], 1)

    at_nodes = {name: interpolate(name) for name in kernels}
    if name == "segments":  # whose gradient is the sum of its steps'
        ends_T = np.asarray(default_grid(other).times_TS)[:, -1] * c.num_layers
        of_segment_NT = np.arange(1, c.num_layers + 1)[:, None] == ends_T.round()
        sums = {k: np.tensordot(of_segment_NT, x, 1) for k, x in kernels.items()}
        close = functools.partial(np.testing.assert_allclose, atol=1e-12)
        jax.tree.map(close, at_nodes, sums)
    own, sampled = Update(C, 10, c), Update(C, 10, other, other_times=True)
    before = {k: random.normal(size=x.shape) for k, x in at_nodes.items()}
    given = gradients_of(params, nodes, before)
    params, opt_state, *_ = updated(own, own.init(params), params, given)
    given = gradients_of(params, times, kernels)
    found = updated(sampled, opt_state, params, given).params.merge()
    given = gradients_of(params, nodes, at_nodes)
    expected = updated(own, opt_state, params, given).params.merge()
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=2e-4)
    jax.tree.map(close, found, expected)
    moved = [
        np.abs(expected["weights"][name]["bank"] - params.banks[name]).max()
        for name in params.banks
    ]
    assert min(moved) > 0.01
