"""What a step of training sends: what its plan states, and no needless bytes."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from cases import EVERY_MESH, mesh_of
from jax.sharding import NamedSharding, PartitionSpec
from plans import DEVICE, plan_of

from diffeq_former.config import OptimizerConfig
from diffeq_former.distributed.mesh import make_mesh
from diffeq_former.planning import communication
from diffeq_former.planning.closed_form import make_plan
from diffeq_former.planning.collectives import collectives, sent_bytes
from diffeq_former.planning.compiled import compile_step, memory_bytes
from diffeq_former.planning.hlo import Program

pytestmark = pytest.mark.mesh

PLAIN = {"weights": "layer_table", "solver": "lie_trotter"}
MESHES = EVERY_MESH | {"data-fsdp-sequence": {"data": 2, "fsdp": 2, "sequence": 2}}


@functools.cache
def measured(mesh: str, block: str, M: int, **model) -> dict:
    config = plan_of(MESHES[mesh], M, block=block, **model).config
    on_mesh = make_mesh(config.mesh)
    compiled = compile_step(config, on_mesh)
    sent = sent_by_kind(compiled, on_mesh)
    return {"sent": sent, "argument": memory_bytes(compiled)["argument"]}


def sent_by_kind(compiled, mesh):
    program = Program(compiled.as_text())
    return sent_bytes(collectives(program, dict(mesh.shape)), "kind")


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


# Each axis of the mesh meets each block.
@pytest.mark.parametrize(
    "mesh, block",
    [
        ("data-fsdp-tensor", "llama"),
        slow("fsdp", "gpt"),
        slow("data", "gpt"),
        slow("tensor", "gpt"),
        slow("sequence", "gpt"),
        slow("data-fsdp-sequence", "llama"),
        ("fsdp-sequence-tensor", "llama"),
    ],
)
def test_no_more_is_sent_than_by_a_plain_transformer(mesh, block):
    ours, plain = (
        sum(measured(mesh, block, 1, **model)["sent"].values()) for model in ({}, PLAIN)
    )
    assert 0 < ours <= 1.02 * plain


@pytest.mark.parametrize(
    "mesh, block",
    [("data-fsdp-tensor", "llama"), slow("fsdp", "gpt"), slow("data", "gpt")],
)
def test_accumulated_gradients_cross_the_network_once(mesh, block):
    once, accumulated = (measured(mesh, block, M)["sent"] for M in (1, 4))
    assert 0 < accumulated["all-reduce"] <= 1.02 * once["all-reduce"]


@pytest.mark.parametrize(
    "mesh, block, M",
    [
        ("data-fsdp-tensor", "llama", 1),
        slow("fsdp", "gpt", 1),
        slow("fsdp", "gpt", 4),
        slow("data", "gpt", 1),
        slow("tensor", "gpt", 1),
        slow("sequence", "gpt", 1),
    ],
)
def test_as_much_is_sent_as_planned(mesh, block, M):
    """But for norms, the maps from t to u(t), and sums of scalars."""
    plan, found = plan_of(MESHES[mesh], M, block=block), measured(mesh, block, M)
    assert communication.by_kind(plan.sent) == pytest.approx(found["sent"], rel=0.01)
    assert found["argument"] == pytest.approx(
        plan.memory.parameters + plan.memory.optimizer + plan.memory.batch, abs=32
    )


@pytest.mark.parametrize(
    "optimizer, weights",
    [("weight_space_muon", "hypernetwork"), ("muon", "layer_table")],
)
def test_as_much_is_sent_for_muon_as_planned(optimizer, weights):
    """Beside what AdamW sends. Three layers are distributed over four devices."""
    c = plan_of(MESHES["data-fsdp-tensor"], weights=weights).config
    c = dataclasses.replace(c, optimizer=OptimizerConfig(name=optimizer))
    on_mesh = make_mesh(c.mesh)
    found = sent_by_kind(compile_step(c, on_mesh), on_mesh)
    planned = make_plan(c, dict(on_mesh.shape), DEVICE).sent
    assert communication.by_kind(planned) == pytest.approx(found, rel=0.02)
    assert found["all-to-all"] > 0


def test_bytes_of_known_programs():
    mesh = mesh_of(8, data=2, fsdp=4)
    fsdp, whole = (NamedSharding(mesh, PartitionSpec(x)) for x in ("fsdp", None))

    def sent(function, before, after):
        x = jax.ShapeDtypeStruct((64, 4), np.float32, sharding=before)
        compiled = jax.jit(function, out_shardings=after).lower(x).compile()
        return sent_by_kind(compiled, mesh)

    assert sent(lambda x: x, fsdp, whole) == {"all-gather": 64 * 4 * 4 * 3 / 4}
    assert sent(lambda x: x.sum(0), fsdp, whole) == {"all-reduce": 2 * 4 * 4 * 3 / 4}

    def repeated(x):
        def body(_, k):
            return None, (x * k).sum(0)

        return jax.lax.scan(body, None, np.arange(5, dtype=np.float32))[1]

    assert sent(repeated, fsdp, whole) == {"all-reduce": 5 * 2 * 4 * 4 * 3 / 4}
