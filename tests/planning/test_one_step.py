"""What a step keeps and multiplies, against traces of the whole model."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from cases import TINY, allowed, name, shapes_of

from diffeq_former.config import Config, TrainingConfig
from diffeq_former.models.remat import POLICIES, SAVE_WEIGHTS
from diffeq_former.models.transformer import Transformer
from diffeq_former.planning.closed_form import flops_of_step
from diffeq_former.planning.one_step import kept, share_of
from diffeq_former.planning.products import dot_flops
from diffeq_former.sharding.rules import MESH_AXES
from diffeq_former.training.gradients import loss_and_gradients

ROWS = 6


def params_of(c):
    is_shape = {"is_leaf": lambda x: isinstance(x, tuple)}
    return jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32), shapes_of(c), **is_shape
    )


def saved_bytes(c, num_layers, rows):
    """Of the whole depth, from the trace of the model's own scan."""
    c = c.at_depth(num_layers)
    model = Transformer(c, train=True)
    params = params_of(c)
    tokens_BL = jax.ShapeDtypeStruct((rows, c.max_len), jnp.int32)

    def residuals(params, tokens_BL):
        def hidden(params):
            return model.apply({"params": params}, tokens_BL, method="hidden")

        return jax.vjp(hidden, params)[1]

    saved = jax.eval_shape(residuals, params, tokens_BL)
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(saved))


@pytest.mark.parametrize("block", ["gpt", "llama"])
@pytest.mark.parametrize("remat", sorted(set(POLICIES) - {"none", *SAVE_WEIGHTS}))
def test_each_step_and_row_keeps_as_much_as_stated(block, remat):
    c = dataclasses.replace(TINY, block=block, remat=remat)

    def of_a_row(num_layers):
        return saved_bytes(c, num_layers, 4) - saved_bytes(c, num_layers, 3)

    L = c.max_len
    assert of_a_row(5) - of_a_row(3) == 2 * kept(c).of(1, L, L)


def test_without_a_policy_the_scan_keeps_a_little_less():
    """It does not repeat what is the same in all steps, such as the mask."""
    rows = [
        saved_bytes(TINY, num_layers, 4) - saved_bytes(TINY, num_layers, 3)
        for num_layers in (3, 5)
    ]
    per_step, L = (rows[1] - rows[0]) / 2, TINY.max_len
    assert 0.9 * kept(TINY).of(1, L, L) <= per_step <= kept(TINY).of(1, L, L)


@pytest.mark.parametrize("remat", ["none", "full"])
@pytest.mark.parametrize("config", allowed(), ids=name)
def test_flops_are_those_of_the_traced_step(config, remat):
    model = dataclasses.replace(config, remat=remat)
    whole = Config(model=model, training=TrainingConfig(batch_size=ROWS))
    batch = jax.ShapeDtypeStruct((1, ROWS, model.max_len), jnp.int32)
    key = jax.eval_shape(lambda: jax.random.key(0))

    def step(params, batch, key):
        batches = {"inputs": batch, "targets": batch}
        return loss_and_gradients(whole, params, batches, key)[1]

    counted = sum(dot_flops(step, params_of(model), batch, key))
    stated = flops_of_step(whole, dict.fromkeys(MESH_AXES, 1), model.max_len)
    # The maps from t to u(t) are not counted, and are large beside a tiny model.
    maps = 0.02 if model.weights == "hypernetwork" else 0
    assert (1 - maps) * counted <= stated <= counted


def test_a_share_has_its_part_of_what_is_cut():
    c = dataclasses.replace(TINY, num_heads=4, remat="dots")
    whole, half = kept(c), kept(share_of(c, 2))
    state = c.d_model * 4  # is not cut
    assert whole.per_token - state == 2 * (half.per_token - state)
