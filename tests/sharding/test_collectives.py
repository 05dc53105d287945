"""What a step of training sends: no more than a plain transformer's."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from cases import EVERY_MESH, WIDE, in_two_lots, mesh_of
from jax.sharding import NamedSharding, PartitionSpec

from diffeq_former.config import Config, TrainingConfig
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.sharding.collectives import sent_bytes
from diffeq_former.sharding.mesh import batch_sharding, layout, num_row_shares
from diffeq_former.training import state
from diffeq_former.training.step import make_train_step

ROWS, L = 32, WIDE.max_len
PLAIN = {"weights": "layer_table", "solver": "lie_trotter"}
MESHES = EVERY_MESH | {"data-fsdp-sequence": {"data": 2, "fsdp": 2, "sequence": 2}}
QUICK = ("fsdp",)


@functools.cache
def sent_by_step(mesh: str, block: str, M: int = 1, **model) -> dict[str, float]:
    devices = mesh_of(8, **MESHES[mesh])
    config = Config(
        model=dataclasses.replace(WIDE, block=block, **model),
        training=TrainingConfig(
            batch_size=ROWS,
            per_device_batch_size=ROWS // num_row_shares(devices) // M,
            loss_chunk=8,
        ),
    )
    tokens = jax.ShapeDtypeStruct((ROWS, L), np.int32, sharding=batch_sharding(devices))
    step = make_train_step(config, devices).__wrapped__
    with layout(devices):
        lowered = step.lower(
            state.abstract(config, devices), {"inputs": tokens, "targets": tokens}
        )
    return sent_bytes(lowered.compile().as_text())


def cases():
    for block in BLOCKS:
        for mesh in MESHES:
            quick = block == "gpt" and mesh in QUICK
            yield pytest.param(mesh, block, marks=[] if quick else pytest.mark.slow)


@pytest.mark.parametrize("mesh, block", list(cases()))
def test_no_more_is_sent_than_by_a_plain_transformer(mesh, block):
    ours, plain = sent_by_step(mesh, block), sent_by_step(mesh, block, **PLAIN)
    assert 0 < sum(ours.values()) <= 1.02 * sum(plain.values())


@pytest.mark.parametrize("mesh", in_two_lots(["data", "fsdp"], "fsdp".__eq__))
def test_accumulated_gradients_cross_the_network_once(mesh):
    once, accumulated = sent_by_step(mesh, "gpt"), sent_by_step(mesh, "gpt", M=4)
    assert 0 < accumulated["all-reduce"] <= 1.02 * once["all-reduce"]


def test_bytes_of_known_programs():
    mesh = mesh_of(8, data=2, fsdp=4)
    fsdp, whole = (NamedSharding(mesh, PartitionSpec(x)) for x in ("fsdp", None))

    def sent(function, before, after):
        x = jax.ShapeDtypeStruct((64, 4), np.float32, sharding=before)
        compiled = jax.jit(function, out_shardings=after).lower(x).compile()
        return sent_bytes(compiled.as_text())

    assert sent(lambda x: x, fsdp, whole) == {"all-gather": 64 * 4 * 4 * 3 / 4}
    assert sent(lambda x: x.sum(0), fsdp, whole) == {"all-reduce": 2 * 4 * 4 * 3 / 4}

    def repeated(x):
        def body(_, k):
            return None, (x * k).sum(0)

        return jax.lax.scan(body, None, np.arange(5, dtype=np.float32))[1]

    assert sent(repeated, fsdp, whole) == {"all-reduce": 5 * 2 * 4 * 4 * 3 / 4}
