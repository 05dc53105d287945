"""Where W(t) starts."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TINY

from diffeq_former.models.transformer import Transformer

WIDE = dataclasses.replace(
    TINY, d_model=64, d_ff=256, time_embed_dim=48, num_frequencies=128, num_layers=8
)


def initial_params(config):
    init = jax.jit(Transformer(config).init)
    return nn.unbox(init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32)))


def initial_table(config):
    apply = jax.jit(Transformer(config).apply, static_argnames="method")
    return apply(initial_params(config), method="tabulate")


def rms(x) -> float:
    return float(np.sqrt(np.square(x).mean()))


@pytest.mark.parametrize("block", ["gpt", "llama"])
def test_unit_starts_at_the_size_of_plain_weights(block):
    """The base has 0.02, the bank adds as much: u(t) has length 1."""
    table = initial_table(dataclasses.replace(WIDE, block=block))
    for unit in table.values():
        if "kernel" in unit:
            assert rms(unit["kernel"]) == pytest.approx(0.02 * 2**0.5, rel=0.03)


def test_unit_moves_in_time():
    kernel = initial_table(WIDE)["ff_in"]["kernel"]
    assert rms(kernel[0] - kernel[-1]) > 0.3 * 0.02


def test_authors_start_near_zero():
    """0.02 at three levels and no base: W(t) is well below plain weights."""
    config = dataclasses.replace(WIDE, initialization="authors")
    assert 0 < rms(initial_table(config)["ff_in"]["kernel"]) < 0.02 / 5


@pytest.mark.parametrize("weights", ["layer_table", "hypernetwork"])
def test_residual_outputs_start_smaller_in_steps_of_length_one(weights):
    config = dataclasses.replace(WIDE, weights=weights, solver="lie_trotter")
    params = initial_params(config)["params"]["weights"]
    stored = "kernel" if weights == "layer_table" else "base"
    for name in ("attention_out", "ff_out"):
        assert rms(params[name][stored]) == pytest.approx(0.02 / 4, rel=0.05)
    assert rms(params["ff_in"][stored]) == pytest.approx(0.02, rel=0.05)
