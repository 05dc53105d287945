"""The way through depth, step by step, is the model's own."""

import dataclasses

import jax
import numpy as np
import pytest
from cases import (
    OPTIONS,
    TINY,
    coupled,
    mesh_of,
    model,
    name,
    params_of,
    stabilised,
    tokens_of,
)

from diffeq_former.analysis import depth
from diffeq_former.analysis.loaded_model import LoadedModel
from diffeq_former.config import Stabilisers
from diffeq_former.errors import UserError
from diffeq_former.models.transformer import Transformer, outer_params

# Every solver with one block, and every norm with both.
CONFIGS = [
    TINY,
    *stabilised()[:3],
    model("gpt", "hypernetwork", "strang", stabilisers=Stabilisers(1.0, "none")),
    model("llama", "shared", "midpoint", stabilisers=Stabilisers(1.0, "none")),
    model("gpt", "shared", "rk4"),
    model("gpt", "hypernetwork", "euler", positions="rotary", rope_fraction=0.5),
    model("llama", "hypernetwork", "heun", num_heads=4, num_kv_heads=2, **OPTIONS),
]


@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_states_are_those_of_the_model(config):
    params, tokens_BL = params_of(config), tokens_of(config, batch=1)

    @jax.jit
    def ours_and_the_models(params):
        apply, variables = Transformer(config).apply, {"params": params}
        logits_BLV, sown = apply(variables, tokens_BL, mutable=("intermediates",))
        (expected_TBLD,) = sown["intermediates"]["depth"]["state"]
        outer, table = outer_params(params), apply(variables, method="tabulate")
        first_LD = depth.embed(config, outer, tokens_BL[0])
        states_TLD = depth.states(config, table, first_LD)
        found_LV = depth.logits(config, outer, states_TLD[-1])
        return (states_TLD, found_LV), (expected_TBLD[:, 0], logits_BLV[0])

    (states_TLD, found_LV), (expected_TLD, logits_LV) = ours_and_the_models(params)
    assert len(states_TLD) == config.num_layers + 1
    np.testing.assert_allclose(states_TLD[1:], expected_TLD, atol=2e-5)
    token = params["embedding"]["token"][tokens_BL[0]]
    if not config.learned_positions:
        np.testing.assert_array_equal(states_TLD[0], token)
    np.testing.assert_allclose(found_LV, logits_LV, atol=1e-4)


def test_reversible_steps_are_refused():
    """They have two states, of which an analysis would follow one."""
    config = coupled()
    table = {"kernel": np.zeros((config.num_layers, 1))}
    with pytest.raises(UserError, match="reversible steps couple two; use a run with"):
        depth.states(config, table, np.zeros((8, config.d_model)))


def test_attention_maps_weigh_the_values():
    """Of one head: its map times the values, written out, is the attention term."""
    config = dataclasses.replace(TINY, num_heads=1)
    params, tokens_L = params_of(config), tokens_of(config, batch=1)[0]
    trained = LoadedModel("run", config, params, None, mesh_of())
    first_LD = depth.embed(config, trained.outer, tokens_L)
    states_TLD = depth.states(config, trained.table, first_LD)
    maps_TNLL = np.asarray(depth.attention_maps(config, trained.table, states_TLD))
    assert maps_TNLL.shape == (3, 1, 8, 8)
    np.testing.assert_allclose(maps_TNLL.sum(-1), 1, rtol=1e-6)
    assert (np.triu(maps_TNLL, 1) == 0).all()
    frozen = jax.tree.map(np.zeros_like, trained.table)
    table = trained.table | {"ff_in": frozen["ff_in"], "ff_out": frozen["ff_out"]}
    states_TLD = np.asarray(depth.states(config, table, first_LD))
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
