"""Where W(t) starts."""

import dataclasses
import functools

import flax.linen as nn
import jax
import numpy as np
import pytest
from cases import TINY, tokens_of

from diffeq_former.models.grid import default_grid
from diffeq_former.models.transformer import Transformer

WIDE = dataclasses.replace(
    TINY, d_model=64, d_ff=128, time_embed_dim=48, num_frequencies=128, num_layers=8
)


@functools.cache
def initial(config):
    """The table of the weights, and what it is made of."""
    init = Transformer(config).init_with_output
    table, variables = nn.unbox(init(jax.random.key(0), method="tabulate"))
    return table, variables["params"]["weights"]


def rms(x) -> float:
    return float(np.sqrt(np.square(x).mean()))


@pytest.mark.parametrize("block", ["gpt", "llama"])
def test_unit_starts_at_the_size_of_plain_weights(block):
    """The base has 0.02, the bank adds as much: u(t) has length 1."""
    table, _ = initial(dataclasses.replace(WIDE, block=block))
    for unit in table.values():
        if "kernel" in unit:
            assert rms(unit["kernel"]) == pytest.approx(0.02 * 2**0.5, rel=0.03)


def test_unit_moves_in_time():
    kernel = initial(WIDE)[0]["ff_in"]["kernel"]
    assert rms(kernel[0] - kernel[-1]) > 0.3 * 0.02


def test_authors_start_near_zero():
    """0.02 at three levels and no base: W(t) is well below plain weights."""
    config = dataclasses.replace(WIDE, initialization="authors")
    assert 0 < rms(initial(config)[0]["ff_in"]["kernel"]) < 0.02 / 5


@pytest.mark.parametrize(
    ("block", "weights"),
    [("gpt", "layer_table"), ("gpt", "hypernetwork"), ("llama", "layer_table")],
)
def test_residual_outputs_start_smaller_in_steps_of_length_one(block, weights):
    config = dataclasses.replace(
        WIDE, block=block, weights=weights, solver="lie_trotter"
    )
    _, params = initial(config)
    stored = "kernel" if weights == "layer_table" else "base"
    into, out = {"gpt": ("ff_in", "ff_out"), "llama": ("gate", "down")}[block]
    for name in ("attention_out", out):
        assert rms(params[name][stored]) == pytest.approx(0.02 / 4, rel=0.05)
    assert rms(params[into][stored]) == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("initialization, stddev", [("unit", 0.0), ("authors", 0.02)])
def test_banks_of_biases_and_norms(initialization, stddev):
    """Norms start at one and zero; so do biases, but for those of the released code."""
    config = dataclasses.replace(WIDE, initialization=initialization)
    table, params = initial(config)
    for name in ("norm_1", "norm_2"):
        assert (table[name]["scale"] == 1).all() and (table[name]["shift"] == 0).all()
    for name in ("qkv", "attention_out", "ff_in", "ff_out"):
        assert rms(params[name]["bank"]) == pytest.approx(0.02, rel=0.05)
        assert rms(params[name]["bias_bank"]) == pytest.approx(stddev, rel=0.1)


@pytest.mark.parametrize(
    "block, weights", [("gpt", "hypernetwork"), ("llama", "layer_table")]
)
def test_outputs_that_start_at_zero_leave_the_state_and_learn(block, weights):
    """Also the banks, whose gradient is u(t) times that of W(t)."""
    changes = {"block": block, "weights": weights, "zero_init_output": True}
    config = dataclasses.replace(TINY, **changes)
    model, tokens_BL = Transformer(config), tokens_of(config)

    @jax.jit
    def initial_gradients_and_states():
        params = nn.unbox(model.init(jax.random.key(0), tokens_BL))["params"]

        def loss(params):
            variables, sows = {"params": params}, ("intermediates",)
            logits_BLV, sown = model.apply(variables, tokens_BL, mutable=sows)
            [states_TBLD] = sown["intermediates"]["depth"]["state"]
            first_BLD = model.apply(variables, tokens_BL, method="embed")
            loss = jax.nn.log_softmax(logits_BLV)[..., 0].sum()
            return loss, states_TBLD - first_BLD[None]

        return params["weights"], *jax.grad(loss, has_aux=True)(params)

    params, gradients, moved_TBLD = initial_gradients_and_states()
    assert (moved_TBLD == 0).all()
    for name in ("attention_out", {"gpt": "ff_out", "llama": "down"}[block]):
        for key in {"kernel", "base", "bank"} & params[name].keys():
            assert rms(params[name][key]) == 0
            assert rms(gradients["weights"][name][key]) > 1e-4


def test_a_shared_time_mlp_is_one():
    """And gives one u(t) for all weights; else each of the six has its own."""
    for time_mlp, count in (("shared", 1), ("per_weight", 6)):
        config = dataclasses.replace(WIDE, time_mlp=time_mlp)
        params = initial(config)[1]
        assert params["time_mlp"]["kernel_1"].shape[0] == count
        u = Transformer(config).apply(
            {"params": {"weights": params}}, default_grid(config), method="coefficients"
        )
        distinct = {np.asarray(x).tobytes() for x in u.values()}
        assert (len(u), len(distinct)) == (6, count)
