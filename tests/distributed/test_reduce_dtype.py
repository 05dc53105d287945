"""The dtype in which devices add up gradients: what it costs, and that it is used."""

import dataclasses
import re

import jax.numpy as jnp
import numpy as np
import pytest
from cases import TINY, mesh_of

from diffeq_former.config import Config, TrainingConfig
from diffeq_former.distributed.mesh import layout
from diffeq_former.planning.compiled import lower, training_step

# Of one addition of rounding to the nearest, relative to the sum.
EPSILON = {"float32": 2.0**-24, "bfloat16": 2.0**-9}


def error_of_ring(dtype: str, num_shards: int) -> float:
    """The relative error of a sum that is rounded after each addition."""
    random = np.random.default_rng(0)
    shards = random.normal(size=(num_shards, 4096)).astype(np.float32)
    # A gradient is a mean of sequences that agree, and their noise.
    shards += 0.3 * random.normal(size=4096).astype(np.float32)
    total = jnp.zeros(4096, dtype)
    for shard in shards:
        total = total + jnp.asarray(shard, dtype)
    exact = shards.astype(np.float64).sum(0)
    found = np.asarray(total.astype(jnp.float32), np.float64)
    return np.linalg.norm(found - exact) / np.linalg.norm(exact)


@pytest.mark.parametrize("num_shards", [8, 64, 512])
def test_errors_of_sums_over_shards(num_shards):
    errors = {dtype: error_of_ring(dtype, num_shards) for dtype in EPSILON}
    sent = {
        dtype: 2 * jnp.dtype(dtype).itemsize * (1 - 1 / num_shards) for dtype in EPSILON
    }
    cells = [f"{errors[d]:.1e} | {sent[d]:.1f}" for d in EPSILON]
    print(f"\n| {num_shards} | {' | '.join(cells)} |")
    for dtype, epsilon in EPSILON.items():
        # Roundings are independent: their number counts by its root at most.
        assert 0.2 * epsilon < errors[dtype] < epsilon * np.sqrt(num_shards)


@pytest.mark.mesh
@pytest.mark.parametrize("M", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_are_added_up_in_this_dtype(dtype, M):
    """In the program before its compiler for CPUs, which adds in float32 only."""
    rows, mesh = 16, mesh_of(8)
    config = Config(
        model=dataclasses.replace(TINY, dtype="bfloat16", reduce_dtype=dtype),
        training=TrainingConfig(
            batch_size=rows, per_device_batch_size=rows // 8 // M, loss_chunk=4
        ),
    )
    function, arguments = training_step(config, mesh)
    with layout(mesh):
        text = lower(function, mesh, *arguments).as_text()
    V, D = config.model.vocab_size, config.model.d_model
    named = {"float32": "f32", "bfloat16": "bf16"}[dtype]
    sums = re.findall(rf"reduce\(.*tensor<8x{V}x{D}x(\w+)>,", text)
    assert named in sums and not {"f32", "bf16"} - {named} & set(sums)
