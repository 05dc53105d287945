"""Products in training: their gradients, and what 8 bits cost."""

import dataclasses
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TINY, mesh_of

from diffeq_former.config import Config, ModelConfig, OptimizerConfig, TrainingConfig
from diffeq_former.distributed.mesh import shard_batch
from diffeq_former.errors import UserError
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.linear import RECIPES, for_training, linear
from diffeq_former.training import state
from diffeq_former.training.step import make_train_step

# Wide to narrow, narrow to wide, several inputs, several outputs.
KERNELS = {"narrow": (48, 16), "wide": (16, 48), "heads": (16, 3, 4, 8)}
TWO_INPUTS = (4, 8, 16)


def case(shape, num_inputs, dtype):
    random = np.random.default_rng(0)
    x = random.normal(size=(5, 7, *shape[:num_inputs]))
    weights = {
        "kernel": random.normal(size=shape) / np.sqrt(np.prod(shape[:num_inputs])),
        "bias": random.normal(size=shape[num_inputs:]),
    }
    return jax.tree.map(lambda a: jnp.asarray(a, dtype), (weights, x))


def results(c: ModelConfig | None, weights, x, num_inputs):
    """The output and the gradients, in training by the config or by autodiff."""

    def apply(weights, x):
        if c is not None:
            weights = for_training(c, {"map": weights})["map"]
        return linear(weights, x, num_inputs)

    y, pull_back = jax.vjp(apply, weights, x)
    dy = jnp.asarray(np.random.default_rng(1).normal(size=y.shape), y.dtype)
    return y, *pull_back(dy)


@pytest.mark.parametrize("shape", [*KERNELS.values(), TWO_INPUTS], ids=str)
def test_gradients_are_those_of_autodiff(shape, x64):
    num_inputs = 2 if shape == TWO_INPUTS else 1
    inputs = (*case(shape, num_inputs, jnp.float64), num_inputs)
    found, expected = (results(c, *inputs) for c in (TINY, None))
    near = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)  # noqa: E731
    jax.tree.map(near, found, expected)


@pytest.mark.parametrize("precision, error", [("int8", 0.02), ("fp8", 0.08)])
@pytest.mark.parametrize("shape", KERNELS.values(), ids=str)
def test_eight_bits_are_close(shape, precision, error):
    """Rounding errors of a product: independent, so their norm is that of one."""
    c = dataclasses.replace(TINY, matmul_precision=precision)
    inputs = (*case(shape, 1, jnp.float32), 1)
    found, expected = (results(x, *inputs) for x in (c, None))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.linalg.norm(a - b) < error * np.linalg.norm(b)
    assert np.linalg.norm(found[0] - expected[0]) > 0.1 * error


@pytest.mark.parametrize(
    "precision, dtypes",
    [("int8", ["i8"] * 4), ("fp8", ["f8E4M3FN"] * 4 + ["f8E5M2"] * 2)],
)
def test_the_factors_of_products_have_eight_bits(precision, dtypes):
    c = dataclasses.replace(TINY, matmul_precision=precision)
    weights, x = case((16, 48), 1, jnp.float32)
    function = jax.jit(lambda weights, x: results(c, weights, x, 1))
    lines = [
        s
        for s in function.lower(weights, x).as_text().splitlines()
        if "dot_general" in s
    ]
    found = [
        d
        for line in lines
        for d in re.findall(r"tensor<[\dx]*x(\w+)>", line.split(":")[-1].split("->")[0])
    ]
    assert sorted(d for d in found if "8" in d) == sorted(dtypes)


def losses(**changes) -> np.ndarray:
    model = dataclasses.replace(TINY, num_layers=2, **changes)
    config = Config(
        model=model,
        optimizer=OptimizerConfig(learning_rate=0.02, warmup_fraction=0.2),
        training=TrainingConfig(batch_size=8, num_steps=60),
    )
    mesh = mesh_of()
    current, step = state.create(config, mesh), make_train_step(config, mesh)
    tokens = np.arange(9)[None] * np.arange(1, 9)[:, None] % model.vocab_size
    batch = {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}
    batch = shard_batch({k: x.astype(np.int32) for k, x in batch.items()}, mesh)
    found = []
    for _ in range(config.training.num_steps):
        current, metrics = step(current, batch)
        found.append(float(metrics["loss"]))
    return np.array(found)


@pytest.mark.parametrize("precision", sorted(RECIPES.keys() - {"default"}))
def test_training_converges_as_with_all_bits(precision):
    found, expected = losses(matmul_precision=precision), losses()
    assert found[-1] < 0.5 * found[0]
    assert np.abs(found - expected).mean() < 0.05 * expected.mean()
    assert (found != expected).any()


@pytest.mark.parametrize("block", BLOCKS)
def test_training_converges_in_bfloat16(block):
    """Not every product of bfloat16 can be executed on every CPU."""
    dtypes = ("bfloat16", "float32")
    found, expected = (losses(block=block, tied_head=True, dtype=d) for d in dtypes)
    assert np.abs(found - expected).mean() < 0.05 * expected.mean()
    assert (found != expected).any()


def test_a_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "qwix", None)
    c = dataclasses.replace(TINY, matmul_precision="int8")
    with pytest.raises(UserError, match=r"config.model.matmul_precision: .*quantized"):
        results(c, *case((16, 48), 1, jnp.float32), 1)
