"""States and checkpoints of a few small arrays, without a model."""

import jax
import jax.numpy as jnp
import numpy as np

from diffeq_former.training.checkpoint import Checkpoints
from diffeq_former.training.state import TrainState


def make_state(step: int, width: int = 3, extra: dict | None = None) -> TrainState:
    key = jax.random.key(step)
    params = {
        "weights": {"bank": jax.random.normal(key, (2, width))},
        "head": {"kernel": jnp.full((width,), jnp.pi)},
    } | (extra or {})
    moments = jax.tree.map(lambda x: x / 7, params)
    return TrainState(
        step=jnp.int32(step),
        params=params,
        unaveraged={},
        opt_state=(moments, {"count": jnp.int32(step)}, ()),
        bad_steps=jnp.int32(1),
        skipped_steps=jnp.int32(2),
        loss_ema=jnp.float32(3),
        rollbacks=jnp.int32(4),
    )


def abstract(state: TrainState) -> TrainState:
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), state
    )


def assert_equal(a, b) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def save_all(directory, losses: dict, keep_latest=2, keep_best=1) -> None:
    checkpoints = Checkpoints(directory, keep_latest, keep_best)
    for step, loss in losses.items():
        checkpoints.save(step, make_state(step), loss)
    checkpoints.close()
