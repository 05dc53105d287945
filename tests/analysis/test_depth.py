"""The way through depth, step by step, is the model's own."""

import dataclasses

import jax
import numpy as np
import pytest
from cases import (
    TINY,
    allowed_in_turn,
    mesh_of,
    name,
    params_of,
    stabilised,
    tokens_of,
)

from diffeq_former.analysis import depth
from diffeq_former.analysis.trained import Trained
from diffeq_former.models.transformer import Transformer

GROUPED = dataclasses.replace(TINY, block="llama", num_heads=4, num_kv_heads=2)


def trained(config):
    return Trained("run", config, params_of(config), None, mesh_of())


def states_of(model, ids_L):
    return depth.states(
        model.config, model.table, depth.embed(model.config, model.ends, ids_L)
    )


@pytest.mark.parametrize(
    "config", [*allowed_in_turn(), GROUPED, *stabilised()], ids=name
)
def test_states_are_those_of_the_model(config):
    model, tokens_BL = trained(config), tokens_of(config, batch=1)
    apply = jax.jit(Transformer(config).apply, static_argnames="mutable")
    logits_BLV, sown = apply(
        {"params": model.params}, tokens_BL, mutable=("intermediates",)
    )
    (expected_TBLD,) = sown["intermediates"]["depth"]["state"]
    states_TLD = states_of(model, tokens_BL[0])
    assert len(states_TLD) == config.num_layers + 1
    np.testing.assert_allclose(states_TLD[1:], expected_TBLD[:, 0], atol=2e-5)
    token = model.params["embedding"]["token"][tokens_BL[0]]
    if config.block == "llama":  # has no positions in its embedding
        np.testing.assert_array_equal(states_TLD[0], token)
    found = depth.logits(model.config, model.ends, states_TLD[-1])
    np.testing.assert_allclose(found, logits_BLV[0], atol=1e-4)


def test_attention_maps_weigh_the_values():
    """Of one head: its map times the values, written out, is the attention term."""
    config = dataclasses.replace(TINY, num_heads=1)
    model, tokens_L = trained(config), tokens_of(config, batch=1)[0]
    states_TLD = states_of(model, tokens_L)
    maps_TNLL = depth.attention_maps(config, model.table, states_TLD)
    assert maps_TNLL.shape == (3, 1, 8, 8)
    np.testing.assert_allclose(maps_TNLL.sum(-1), 1, rtol=1e-6)
    assert (np.triu(maps_TNLL, 1) == 0).all()
    frozen = jax.tree.map(np.zeros_like, model.table)
    table = model.table | {"ff_in": frozen["ff_in"], "ff_out": frozen["ff_out"]}
    states_TLD = np.asarray(depth.states(config, table, states_TLD[0]))
    maps_TNLL = np.asarray(depth.attention_maps(config, table, states_TLD))
    for t in range(3):
        unit = {n: {k: v[t, 0] for k, v in w.items()} for n, w in table.items()}
        x = states_TLD[t]
        y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        y = y * unit["norm_1"]["scale"] + unit["norm_1"]["shift"]
        v = y @ unit["qkv"]["kernel"][:, 2, 0] + unit["qkv"]["bias"][2, 0]
        out = unit["attention_out"]
        moved = maps_TNLL[t, 0] @ v @ out["kernel"][0] + out["bias"]
        np.testing.assert_allclose(
            states_TLD[t + 1] - x, config.step_size * moved, atol=1e-5
        )
