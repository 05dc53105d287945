"""Rotary positions: in place of a learned table, in all or a part of each head."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TINY, model, name, params_of, shapes_of, tokens_of

from diffeq_former.distributed.sharding_rules import MESH_AXES
from diffeq_former.finetuning.discretise import discrete_model, discrete_params
from diffeq_former.models.positions import rotate
from diffeq_former.models.transformer import Transformer
from diffeq_former.planning import shapes

ROTARY = dataclasses.replace(TINY, positions="rotary", rope_fraction=0.5)
TIED = dataclasses.replace(ROTARY, tied_head=True)


def shifted(config, by):
    """Logits at positions that begin at `by`."""
    tokens_BL = tokens_of(config)
    positions_BL = np.broadcast_to(np.arange(config.max_len), tokens_BL.shape) + by
    apply = jax.jit(Transformer(config).apply)
    return apply({"params": params_of(config)}, tokens_BL, positions_BL=positions_BL)


@pytest.mark.parametrize(
    "config", [ROTARY, model("llama", "shared", "euler")], ids=name
)
def test_logits_depend_on_differences_of_positions(config):
    np.testing.assert_allclose(shifted(config, 0), shifted(config, 5), atol=2e-5)
    still = dataclasses.replace(config, rope_base=1e30, rope_fraction=0.25)
    for other in (still, dataclasses.replace(config, rope_base=50.0)):
        assert np.abs(shifted(config, 0) - shifted(other, 0)).max() > 1e-2


def test_the_first_entries_of_a_head_are_rotated():
    random, c = np.random.default_rng(0), dataclasses.replace(ROTARY, rope_base=7.0)
    q_BLNH, k_BLKH = random.normal(size=(2, 1, 5, 3, 8)).astype(np.float32)
    positions_BL = jnp.asarray([[0, 1, 2, 9, 4]])
    for given, found in zip(
        (q_BLNH, k_BLKH), rotate(c, positions_BL, q_BLNH, k_BLKH), strict=True
    ):
        z = given[..., :2] + 1j * given[..., 2:4]
        angles_L2 = np.outer(positions_BL[0], 7.0 ** -np.array([0, 0.5]))
        z = z * np.exp(1j * angles_L2)[None, :, None]
        np.testing.assert_allclose(found[..., :2], z.real, atol=1e-5)
        np.testing.assert_allclose(found[..., 2:4], z.imag, atol=1e-5)
        np.testing.assert_array_equal(found[..., 4:], given[..., 4:])


@pytest.mark.parametrize(
    "config", [TINY, ROTARY, TIED], ids=["table", "rotary", "tied"]
)
def test_parameters_outside_the_blocks(config):
    """No table, a head unless it is tied; the plan counts the same."""
    found = shapes_of(config)
    assert ("position" in found["embedding"]) == (config is TINY)
    assert ("head" in found) == (config is ROTARY)
    outer = {k: found[k] for k in found if k not in ("weights", "final_norm")}
    is_shape = {"is_leaf": lambda x: isinstance(x, tuple)}
    entries = sum(map(np.prod, jax.tree.leaves(outer, **is_shape)))
    ones = dict.fromkeys(MESH_AXES, 1)
    assert sum(a.num_bytes(ones) for a in shapes.outer(config)) == 4 * entries


def test_a_discretised_model_is_rotary():
    found = discrete_model(ROTARY, 5)
    assert (found.positions, found.rope_fraction) == ("rotary", 0.5)
    params, tokens_BL = params_of(ROTARY), tokens_of(ROTARY)
    expected = Transformer(ROTARY.at_depth(5)).apply({"params": params}, tokens_BL)
    layers = discrete_params(ROTARY, params, 5)
    logits = Transformer(found).apply({"params": layers}, tokens_BL)
    np.testing.assert_allclose(logits, expected, atol=1e-5)
