"""The running mean of the parameters against its definition."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from accumulation import batch_of
from cases import TINY, mesh_of

from diffeq_former.config import Config, OptimizerConfig, TrainingConfig
from diffeq_former.distributed.mesh import shard_batch
from diffeq_former.training import state
from diffeq_former.training.step import make_train_step

PLAIN = Config(
    model=dataclasses.replace(TINY, weights="layer_table", solver="lie_trotter"),
    optimizer=OptimizerConfig(learning_rate=1e-2, warmup_fraction=0.0),
    training=TrainingConfig(batch_size=8),
)


def test_the_mean_of_the_parameters():
    """The mean covers all updates so far; a skipped step leaves it unchanged."""
    mesh, batch = mesh_of(), shard_batch(batch_of(8), mesh_of())
    optimizer = dataclasses.replace(PLAIN.optimizer, ema_decay=0.15)
    averaging = dataclasses.replace(PLAIN, optimizer=optimizer)
    plain, averaged = (state.create(config, mesh) for config in (PLAIN, averaging))
    plain_step, step = (make_train_step(config, mesh) for config in (PLAIN, averaging))
    mean = jax.tree.map(np.array, plain.params)
    for decay in (0.1, 0.15, 0.15):  # at first, it is (n + 1) / (n + 10)
        averaged, _ = step(averaged, batch)
        plain, _ = plain_step(plain, batch)
        assert_close(averaged.unaveraged, plain.params)
        mean = jax.tree.map(
            lambda m, x, d=decay: d * m + (1 - d) * np.asarray(x), mean, plain.params
        )
        assert_close(averaged.params, mean)
    broken = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), averaged.unaveraged)
    after, metrics = step(averaged.replace(unaveraged=broken), batch)
    assert metrics["skipped_steps"] == 1
    assert_close(after.params, mean)


def assert_close(found, expected):
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7),
        found,
        expected,
    )
