"""Dropout and document masks: what the fused attention does not show."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TINY, params_of, tokens_of

from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.transformer import Transformer

every_block = pytest.mark.parametrize("block", BLOCKS)


@functools.cache
def compiled(config, train=False):
    return jax.jit(Transformer(config, train=train).apply)


def logits_of(config, params, tokens_BL):
    return compiled(config)({"params": params}, tokens_BL)


def trained_logits(config, params, tokens_BL, seed):
    rngs = {"dropout": jax.random.key(seed)}
    return compiled(config, train=True)({"params": params}, tokens_BL, rngs=rngs)


@every_block
def test_attention_with_no_dropout_to_speak_of_is_attention(block):
    """The path that can drop probabilities, at a rate that drops none."""
    config = dataclasses.replace(TINY, block=block, attention_dropout=1e-9)
    params, tokens_BL = params_of(config), tokens_of(config)
    usual = dataclasses.replace(TINY, block=block)
    expected = logits_of(usual, params, tokens_BL)
    logits = trained_logits(config, params, tokens_BL, seed=0)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["dropout", "attention_dropout"])
def test_dropout_acts_in_training_only(kind):
    plain = dataclasses.replace(TINY, attention_implementation="xla")
    config = dataclasses.replace(plain, **{kind: 0.5})
    params, tokens_BL = params_of(config), tokens_of(config)
    first, again, other = (
        trained_logits(config, params, tokens_BL, seed) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert float(jnp.abs(first - other).max()) > 1e-3
    still = logits_of(config, params, tokens_BL)
    np.testing.assert_array_equal(still, logits_of(plain, params, tokens_BL))


def test_dropout_differs_between_steps_of_depth():
    """The field is made constant, so only masks tell one step from the next."""
    config = dataclasses.replace(TINY, weights="shared", dropout=0.5)
    params = params_of(config)
    for unit in params["weights"].values():
        for key in unit.keys() & {"kernel", "bias", "shift"}:
            unit[key] = jnp.zeros_like(unit[key])
    ff_out = params["weights"]["ff_out"]
    ff_out["bias"] = jnp.ones_like(ff_out["bias"])
    apply = jax.jit(Transformer(config, train=True).apply, static_argnames="mutable")
    _, sown = apply(
        {"params": params},
        tokens_of(config),
        rngs={"dropout": jax.random.key(0)},
        mutable=("intermediates",),
    )
    (x_TBLD,) = sown["intermediates"]["depth"]["state"]
    moved_TBLD = np.diff(x_TBLD, axis=0).round(4)  # h * (0 or 1 / (1 - rate))
    assert set(np.unique(moved_TBLD)) == {0.0, np.float32(2 / 3).round(4)}
    assert (moved_TBLD[0] != moved_TBLD[1]).any()


@every_block
def test_a_token_is_seen_by_later_ones_of_its_document(block):
    """Token 0 ends a text and begins the next."""
    usual = dataclasses.replace(TINY, block=block)
    config = dataclasses.replace(usual, document_masking=True, end_of_text=0)
    params = params_of(config)
    tokens_BL = np.array([[0, 1, 2, 0, 3, 4, 5, 6], [7, 0, 8, 9, 10, 0, 11, 12]])
    masked = logits_of(config, params, tokens_BL)
    document_BL = (tokens_BL == 0).cumsum(1)
    for place in range(8):
        changed_BL = np.where(np.arange(8)[None] == place, 20, tokens_BL)
        moved_BL = np.abs(logits_of(config, params, changed_BL) - masked).max(-1)
        for row in np.flatnonzero(tokens_BL[:, place]):
            sees_L = document_BL[row] == document_BL[row, place]
            sees_L &= np.arange(8) >= place
            assert (moved_BL[row, sees_L] > 1e-6).all()
            assert (moved_BL[row, ~sees_L] == 0).all()
    unmasked = logits_of(usual, params, tokens_BL)
    np.testing.assert_allclose(masked[0, :3], unmasked[0, :3], atol=1e-5)
    assert float(jnp.abs(masked[0, 3:] - unmasked[0, 3:]).max()) > 1e-3
