"""Gradients over micro-batches, for tests of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from cases import TINY

from diffeq_former.config import Config
from diffeq_former.hardware import CPU
from diffeq_former.models.grid import default_grid
from diffeq_former.training.bank_gradient import as_array, is_gradient
from diffeq_former.training.gradients import loss_and_gradients
from diffeq_former.training.parts import partition


def batch_of(num_rows: int, seed: int = 0) -> dict:
    """Rows with different numbers of targets."""
    random = np.random.default_rng(seed)
    tokens = random.integers(0, TINY.vocab_size, (num_rows, TINY.max_len + 1))
    targets = tokens[:, 1:].copy()
    for row, missing in enumerate(random.integers(0, TINY.max_len, num_rows)):
        targets[row, :missing] = -1
    return {"inputs": tokens[:, :-1], "targets": targets}


def micro_batches(batch: dict, M: int) -> dict:
    batch = batch | {"sequences": np.arange(len(batch["inputs"]))}
    return {k: jnp.asarray(x.reshape(M, -1, *x.shape[1:])) for k, x in batch.items()}


def of_tree(config: Config, params: dict, batches_MBL: dict, key, grid=None):
    """`loss_and_gradients` of a tree of parameters; on the default grid, if none."""
    grid = grid or default_grid(config.model)
    return loss_and_gradients(
        config, partition(config, params), batches_MBL, key, grid, CPU
    )


def accumulated(config: Config, params, batch: dict, M: int, grid=None):
    return _accumulate(config)(params, micro_batches(batch, M), grid)


@functools.cache
def _accumulate(config: Config):
    @jax.jit
    def function(params, batches, grid):
        losses, gradients = of_tree(config, params, batches, jax.random.key(0), grid)
        whole = jax.tree.map(as_array, gradients, is_leaf=is_gradient)
        return losses, whole.merge()

    return function


def assert_near(found, expected, tolerance: float):
    """Differs by `tolerance` of the whole norm, and no array by 10 times that."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    difference = jax.tree.map(jnp.subtract, found, expected)
    assert optax.tree.norm(difference) <= tolerance * optax.tree.norm(expected)
    for (path, x), d in zip(
        jax.tree_util.tree_leaves_with_path(expected),
        jax.tree.leaves(difference),
        strict=True,
    ):
        error, size = jnp.linalg.norm(d.ravel()), jnp.linalg.norm(x.ravel())
        assert error <= 10 * tolerance * size, path
