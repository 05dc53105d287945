import dataclasses

import jax
import numpy as np
import pytest
from cases import TINY, params_of

from diffeq_former.config import Config, OptimizerConfig, TrainingConfig
from diffeq_former.errors import UserError
from diffeq_former.sharding.mesh import local_mesh, replicated, shard_batch
from diffeq_former.training.optimizer import make_optimizer
from diffeq_former.training.state import TrainState
from diffeq_former.training.step import make_train_step

ROWS = 16


def one_device():
    return jax.make_mesh(
        (1,), ("data",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:1]
    )


def batch_of(rows: int) -> dict:
    """Rows with different numbers of targets."""
    random = np.random.default_rng(0)
    tokens = random.integers(0, TINY.vocab_size, (rows, TINY.max_len + 1), np.int32)
    targets = tokens[:, 1:].copy()
    targets[: rows // 3, 2:] = -1
    return {"inputs": tokens[:, :-1], "targets": targets}


def step_on(mesh, config: Config):
    params = params_of(config.model)
    optimizer = make_optimizer(config.optimizer, config.training.num_steps, params)
    zero = np.int32(0)
    state = TrainState(zero, params, optimizer.init(params), zero, zero)
    state = jax.device_put(state, replicated(mesh))
    batch = shard_batch(batch_of(ROWS), mesh)
    return jax.tree.map(np.asarray, make_train_step(config, mesh)(state, batch))


@pytest.mark.parametrize(
    "model, num_micro_batches",
    [
        ({}, 1),
        ({"block": "llama", "weights": "layer_table", "solver": "lie_trotter"}, 2),
        ({"weights": "shared", "solver": "strang"}, 2),
    ],
)
def test_eight_devices_take_the_step_of_one(model, num_micro_batches):
    config = Config(
        model=dataclasses.replace(TINY, **model),
        # A large eps: Adam's first step would else be the sign of rounding errors.
        optimizer=OptimizerConfig(warmup_fraction=0.0, learning_rate=0.1, eps=1e-2),
        training=TrainingConfig(batch_size=ROWS, num_micro_batches=num_micro_batches),
    )
    assert local_mesh().shape == {"data": 8}
    many, many_metrics = step_on(local_mesh(), config)
    one, one_metrics = step_on(one_device(), config)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), many, one)
    for name, value in one_metrics.items():
        assert many_metrics[name] == pytest.approx(value, rel=1e-5), name
    moved = jax.tree.map(
        lambda a, b: np.abs(a - b).max(), one.params, params_of(config.model)
    )
    assert min(jax.tree.leaves(moved)) > 1e-3


def test_each_device_gets_its_rows():
    batch = batch_of(ROWS)
    sharded = shard_batch(batch, local_mesh())["inputs"]
    for k, shard in enumerate(sharded.addressable_shards):
        rows = batch["inputs"][2 * k : 2 * k + 2]
        np.testing.assert_array_equal(shard.data, rows)


@pytest.mark.parametrize(
    "batch_size, num_micro_batches, multiple", [(12, 1, 8), (24, 2, 16), (8, 8, 64)]
)
def test_rows_that_devices_cannot_share_are_refused(
    batch_size, num_micro_batches, multiple
):
    training = TrainingConfig(
        batch_size=batch_size, num_micro_batches=num_micro_batches
    )
    with pytest.raises(UserError) as error:
        make_train_step(Config(model=TINY, training=training), local_mesh())
    assert str(error.value) == (
        f"config.training.batch_size: expected a multiple of {multiple} (8 devices "
        f"times {num_micro_batches} micro-batches), got {batch_size}"
    )
