"""What a step keeps and multiplies, against traces of the whole model."""

import dataclasses

import jax
import numpy as np
import pytest
from accumulation import of_tree
from cases import TINY, shapes_of

from diffeq_former.config import Config, TrainingConfig
from diffeq_former.config.model_schema import SAVE_WEIGHTS
from diffeq_former.distributed.sharding_rules import MESH_AXES
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.remat import POLICIES
from diffeq_former.models.transformer import Transformer
from diffeq_former.planning.closed_form import flops_of_step
from diffeq_former.planning.jaxpr_flops import dot_flops
from diffeq_former.planning.remat_cost import kept, share_of

ROWS = 6
MANY_ROWS = 509  # a prime: no other size is a multiple of it


def params_of(c):
    is_shape = {"is_leaf": lambda x: isinstance(x, tuple)}
    return jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, np.float32), shapes_of(c), **is_shape
    )


def saved_bytes(c, num_layers):
    """For each row and all of the depth, from the trace of the model's own scan."""
    model, params = Transformer(c.at_depth(num_layers), train=True), params_of(c)
    tokens_BL = jax.ShapeDtypeStruct((MANY_ROWS, c.max_len), np.int32)

    def residuals(params, tokens_BL):
        def hidden(params):
            return model.apply({"params": params}, tokens_BL, method="hidden")

        return jax.vjp(hidden, params)[1]

    saved = jax.tree.leaves(jax.eval_shape(residuals, params, tokens_BL))
    of_rows = [x for x in saved if x.size % MANY_ROWS == 0]
    return sum(x.size * x.dtype.itemsize for x in of_rows) / MANY_ROWS


def saved_by_a_step(c):
    return (saved_bytes(c, 5) - saved_bytes(c, 3)) / 2


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("remat", sorted(set(POLICIES) - {"none", *SAVE_WEIGHTS}))
def test_each_step_and_row_keeps_as_much_as_stated(block, remat):
    c = dataclasses.replace(TINY, block=block, remat=remat)
    assert saved_by_a_step(c) == kept(c).of(1, c.max_len, c.max_len)


def test_without_a_policy_the_scan_keeps_a_little_less():
    """It does not repeat what is the same in all steps, such as the mask."""
    stated = kept(TINY).of(1, TINY.max_len, TINY.max_len)
    assert 0.9 * stated <= saved_by_a_step(TINY) <= stated


# Every solver; each source meets each block and policy.
@pytest.mark.parametrize(
    "solver, weights, block, remat",
    [
        ("euler", "hypernetwork", "gpt", "none"),
        ("euler", "layer_table", "llama", "full"),
        ("lie_trotter", "hypernetwork", "llama", "none"),
        ("lie_trotter", "shared", "gpt", "full"),
        ("strang", "hypernetwork", "llama", "full"),
        ("strang", "layer_table", "gpt", "none"),
        ("midpoint", "hypernetwork", "gpt", "full"),
        ("heun", "shared", "llama", "none"),
        ("rk4", "hypernetwork", "llama", "full"),
    ],
)
def test_flops_are_those_of_the_traced_step(solver, weights, block, remat):
    check_flops(solver, weights, block, remat=remat)


@pytest.mark.parametrize("remat", ["none", "full"])
def test_flops_of_reversible_steps(remat):
    check_flops("heun", "shared", "gpt", remat=remat, backward="reversible")


def check_flops(solver, weights, block, **options):
    model = dataclasses.replace(
        TINY,
        solver=solver,
        weights=weights,
        block=block,
        attention_implementation="xla",  # other kernels skip masked scores
        **options,
    )
    whole = Config(model=model, training=TrainingConfig(batch_size=ROWS))
    batch = jax.ShapeDtypeStruct((1, ROWS, model.max_len), np.int32)
    key = jax.eval_shape(lambda: jax.random.key(0))

    def step(params, batch, key):
        batches = {"inputs": batch, "targets": batch, "sequences": batch[..., 0]}
        return of_tree(whole, params, batches, key)[1]

    counted = sum(dot_flops(step, params_of(model), batch, key))
    stated = flops_of_step(whole, dict.fromkeys(MESH_AXES, 1), model.max_len)
    # The maps from t to u(t) are not counted, and are large beside a tiny model.
    maps = 0.02 if model.weights == "hypernetwork" else 0
    assert (1 - maps) * counted <= stated <= counted


def test_a_share_has_its_part_of_what_is_cut():
    c = dataclasses.replace(TINY, num_heads=4, remat="dots")
    whole, half = (kept(share_of(c, shards)) for shards in (1, 2))
    state = c.d_model * 4  # is not cut
    assert whole.per_token - state == 2 * (half.per_token - state)
