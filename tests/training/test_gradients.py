"""Accumulated gradients against a loss written down plainly."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from accumulation import accumulated, assert_near, batch_of, micro_batches, of_tree
from cases import OPTIONS, TINY, in_two_lots, params_of, uneven_grid

from diffeq_former.config import Config, TrainingConfig
from diffeq_former.models.transformer import Transformer
from diffeq_former.planning.jaxpr_flops import dot_flops

Z_LOSS = 0.01
DISCRETE = {"weights": "layer_table", "solver": "lie_trotter"}


def config_of(**model) -> Config:
    training = TrainingConfig(loss_chunk=3, z_loss=Z_LOSS)
    return Config(model=dataclasses.replace(TINY, **model), training=training)


def plain_loss(config: Config, params, batch: dict, grid=None):
    model = Transformer(config.model)
    logits = model.apply({"params": params}, batch["inputs"], grid=grid)
    has_target = batch["targets"] != -1
    log_z = jax.nn.logsumexp(logits, axis=-1)
    one_hot = jax.nn.one_hot(batch["targets"], logits.shape[-1])
    losses = log_z - (logits * one_hot).sum(-1) + Z_LOSS * log_z**2
    return (losses * has_target).sum() / has_target.sum()


CASES = [
    {"block": "gpt"},
    {"block": "llama"},
    {"block": "gpt", **DISCRETE, **OPTIONS},
    {"block": "llama", "weights": "shared"},
    {"generate_weights": "per_step"},
]


@pytest.mark.parametrize("model", in_two_lots(CASES, CASES[2].__eq__), ids=str)
def test_accumulation_equals_the_large_batch(model):
    config, batch = config_of(**model), batch_of(8)
    params = params_of(config.model)
    losses, gradients = accumulated(config, params, batch, 4)
    plain = jax.jit(jax.value_and_grad(lambda p: plain_loss(config, p, batch)))
    loss, expected = plain(params)
    assert float(losses["loss"] + losses["z_loss"]) == pytest.approx(float(loss), 1e-6)
    assert losses["tokens"] == (batch["targets"] != -1).sum()
    assert_near(gradients, expected, 1e-6)


ON_UNEVEN_GRIDS = [
    {"solver": "midpoint"},
    {"block": "llama", "solver": "lie_trotter"},
    {"solver": "strang", "generate_weights": "per_step"},
]


@pytest.mark.parametrize(
    "model", in_two_lots(ON_UNEVEN_GRIDS, ON_UNEVEN_GRIDS[:1].__contains__), ids=str
)
def test_accumulation_on_an_uneven_grid(model):
    config, batch = config_of(**model), batch_of(4)
    params, c = params_of(config.model), config.model
    grid = uneven_grid(c)
    losses, gradients = accumulated(config, params, batch, 2, grid)
    tabulated = config_of(**model | {"generate_weights": "tabulated"})

    @jax.jit
    @jax.value_and_grad
    def plain(params, grid):
        return plain_loss(tabulated, params, batch, grid)

    loss, expected = plain(params, grid)
    assert float(losses["loss"] + losses["z_loss"]) == pytest.approx(float(loss), 1e-6)
    assert_near(gradients, expected, 1e-6)
    other = uneven_grid(c, seed=2)
    _, elsewhere = plain(params, other)
    difference = jax.tree.map(jnp.subtract, gradients, elsewhere)
    assert optax.tree.norm(difference) > 0.01 * optax.tree.norm(elsewhere)


def test_tables_in_bfloat16_are_summed_in_float32():
    """In bfloat16, the 48th of equal addends would be rounded by up to a hundredth."""
    config = config_of(dtype="bfloat16", **DISCRETE)
    params = params_of(config.model)
    many = {k: np.repeat(x, 48, axis=0) for k, x in batch_of(1, seed=3).items()}
    many["targets"] = np.abs(many["targets"])
    two = many | {"targets": np.where(np.arange(48)[:, None] < 2, many["targets"], -1)}
    _, expected = accumulated(config, params, two, 48)  # x + x is exact
    _, gradients = accumulated(config, params, many, 48)
    assert all(g.dtype == jnp.float32 for g in jax.tree.leaves(gradients))
    assert_near(gradients, expected, 1e-6)


def flops_of(config: Config, M: int) -> int:
    params, batch = params_of(config.model), micro_batches(batch_of(8), M)
    key = jax.random.key(0)
    step = functools.partial(of_tree, config)
    return sum(dot_flops(step, params, batch, key))


def test_weights_are_generated_once_for_all_micro_batches():
    tabulated = config_of()
    assert flops_of(tabulated, 4) == flops_of(tabulated, 1)
    per_step = config_of(generate_weights="per_step")
    assert flops_of(per_step, 4) > 1.1 * flops_of(per_step, 1)


@pytest.mark.parametrize("model", [{}, {"generate_weights": "per_step"}], ids=str)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_in_float64_the_split_makes_no_difference(x64, model, dropout):
    """Nor does it to the masks of dropout."""
    rates = {"dropout": dropout, "attention_dropout": dropout, "dtype": "float64"}
    config, batch = config_of(**rates, **model), batch_of(8)
    params = jax.tree.map(lambda x: x.astype(jnp.float64), params_of(config.model))
    _, expected = accumulated(config, params, batch, 1)
    for M in (2, 8):
        _, gradients = accumulated(config, params, batch, M)
        assert_near(gradients, expected, 1e-6)


def test_micro_batches_have_their_own_dropout():
    config = config_of(dropout=0.5, **DISCRETE)
    params, row = params_of(config.model), batch_of(1)
    twice = {k: np.repeat(x, 2, axis=0) for k, x in row.items()}
    first = twice | {"targets": np.stack([*row["targets"], np.full(TINY.max_len, -1)])}
    one, _ = accumulated(config, params, first, 2)
    two, _ = accumulated(config, params, twice, 2)
    assert 2 * one["tokens"] == two["tokens"]
    assert abs(float(one["loss"] - two["loss"])) > 1e-3
