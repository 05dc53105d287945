"""Programs for TPUs and GPUs that are not there: kernels, and what they send."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from topologies import as_released, devices_of, on_target

from diffeq_former.config import Config, MeshConfig, ModelConfig, TrainingConfig
from diffeq_former.distributed.mesh import make_mesh
from diffeq_former.planning import shapes
from diffeq_former.planning.closed_form import make_plan
from diffeq_former.planning.collectives import collectives, sent_bytes
from diffeq_former.planning.communication import by_kind
from diffeq_former.planning.compiled import attention_kernel, memory_bytes
from diffeq_former.planning.cycles import SCOPES, cycles_by_scope
from diffeq_former.planning.devices import DEVICES
from diffeq_former.planning.hlo import Program
from diffeq_former.planning.programs import compile_program

TPU, GPU = "tpu:v5e:2x2", "gpu:h100:1x2"
PLAIN = {"weights": "layer_table", "solver": "lie_trotter"}
MODEL = ModelConfig(
    num_layers=3,
    d_model=512,
    num_heads=4,
    vocab_size=512,
    max_len=256,
    time_embed_dim=32,
    remat="full",
)


def config_of(at_once=0, **model):
    """For a mesh of `fsdp` alone; micro-batches of `at_once` sequences on a device."""
    return Config(
        model=dataclasses.replace(MODEL, **model),
        training=TrainingConfig(
            batch_size=8, per_device_batch_size=at_once, loss_chunk=128
        ),
        mesh=MeshConfig(data=1, fsdp=-1),
    )


@functools.cache
def step_of(target, **options):
    """The compiled step, its text parsed, and the sizes of its mesh."""
    config = config_of(**options)
    mesh = make_mesh(config.mesh, devices_of(target))
    with as_released():
        compiled, _ = compile_program(config, mesh)
    return compiled, Program(compiled.as_text()), dict(mesh.shape)


TARGETS = pytest.mark.parametrize(
    "target, kernel", [on_target(TPU, "splash"), on_target(GPU, "cudnn")]
)


@TARGETS
@pytest.mark.parametrize("model", [{}, PLAIN], ids=["hypernetwork", "plain"])
def test_a_step_calls_the_fused_kernel_and_holds_what_is_planned(target, kernel, model):
    compiled, _, sizes = step_of(target, **model)
    assert attention_kernel(compiled.as_text()) == kernel
    device = DEVICES[target.split(":")[1]]
    planned, held = (
        make_plan(config_of(**model), sizes, device).memory,
        memory_bytes(compiled),
    )
    stated = planned.parameters + planned.optimizer + planned.batch
    assert held["argument"] == pytest.approx(stated, rel=0.02)  # padded on a TPU


@TARGETS
def test_a_hypernetwork_sends_no_bank_and_no_more_than_a_plain_model(target, kernel):
    sent = {}
    for name, model in {"ours": {}, "plain": PLAIN}.items():
        _, program, sizes = step_of(target, **model)
        found = collectives(program, sizes)
        assert {x.axes for x in found if x.num_bytes} == {("fsdp",)}
        sent[name] = sum(sent_bytes(found, "kind").values())
    assert 0 < sent["ours"] <= 1.02 * sent["plain"]
    banks = sum(array.num_bytes(sizes) for array in shapes.banks(MODEL))
    assert sent["ours"] < banks


@pytest.mark.parametrize("target", [on_target(TPU), on_target(GPU)])
@pytest.mark.parametrize("options", [{}, {"at_once": 1}], ids=["once", "accumulated"])
def test_as_much_is_sent_as_planned(target, options):
    """In all and, where it is not negligible, by each kind of collective."""
    _, program, sizes = step_of(target, **options)
    found = sent_bytes(collectives(program, sizes), "kind")
    device = DEVICES[target.split(":")[1]]
    planned = by_kind(make_plan(config_of(**options), sizes, device).sent)
    total = sum(found.values())
    assert sum(planned.values()) == pytest.approx(total, rel=0.1)
    for kind in found.keys() | planned.keys():
        sent, expected = (sums.get(kind, 0) for sums in (found, planned))
        assert expected == pytest.approx(sent, rel=0.1, abs=0.01 * total)


@pytest.mark.parametrize("target", [on_target(GPU)])
def test_an_update_holds_a_bank_and_its_moments_twice(target):
    compiled, _, sizes = step_of(target)
    needed = make_plan(config_of(), sizes, DEVICES["h100"]).memory
    held = memory_bytes(compiled)["total"]
    assert needed.total == pytest.approx(held, rel=0.1)
    assert needed.total - needed.update_copies < 0.8 * held


@pytest.mark.parametrize(
    "target, kernel, precision, dtype",
    [on_target(TPU, "splash", "int8", "s8"), on_target(GPU, "cudnn", "fp8", "f8e4m3")],
)
def test_document_masks_and_products_of_eight_bits(target, kernel, precision, dtype):
    masks = {"document_masking": True, "end_of_text": 0}
    compiled, program, _ = step_of(target, matmul_precision=precision, **masks)
    assert attention_kernel(compiled.as_text()) == kernel
    instructions = [
        x
        for outer, *_ in program.executed()
        for x in (outer, *(y for _, y in program.fused(outer)))
    ]
    factors = [
        {operand.shape.startswith(dtype) for operand in program.operands(x)}
        for x in instructions
        if x.kind in ("dot", "convolution")
    ]
    forward = 4  # linear maps of a GPT step
    assert factors.count({True}) >= forward


@pytest.mark.parametrize("target", [on_target(TPU)])
def test_the_estimate_of_a_tpu_is_by_scope(target):
    _, program, _ = step_of(target)
    cycles = cycles_by_scope(program)
    assert set(SCOPES) < cycles.keys()
    assert cycles["other"] < 0.5 * sum(cycles.values())


@pytest.mark.parametrize("target", [on_target(TPU), on_target(GPU)])
@pytest.mark.parametrize("name", ["evaluate", "prefill", "decode"])
def test_what_is_not_training_compiles_too(target, name):
    config = config_of()
    mesh = make_mesh(config.mesh, devices_of(target))
    with as_released():
        compiled, given = compile_program(config, mesh, name)
    program = Program(compiled.as_text())
    assert sent_bytes(collectives(program, dict(mesh.shape)), "kind")
    assert 0 < memory_bytes(compiled)["argument"] < 1.02 * given


SUM = (2**12, 16)  # a TPU scatters no smaller or flatter sums
BYTES = 2**16 * 4
SIZES = {"data": 1, "fsdp": 2, "sequence": 1, "tensor": 2}


@pytest.mark.parametrize("target", [on_target(TPU), on_target("gpu:h100:1x4")])
def test_bytes_of_known_programs(target):
    """Those of a loop are counted as often as it is executed."""
    mesh = make_mesh(MeshConfig(**SIZES), devices_of(target))
    rows, whole = (NamedSharding(mesh, PartitionSpec(x)) for x in ("tensor", None))
    x = jax.ShapeDtypeStruct((256, *SUM), np.float32, sharding=rows)
    platform = "tpu" if target.startswith("tpu") else "cuda"

    def sent(function, after=whole):
        with as_released():
            jitted = jax.jit(function, out_shardings=after)
            lowered = jitted.trace(x).lower(lowering_platforms=(platform,))
            program = Program(lowered.compile().as_text())
        return sent_bytes(collectives(program, SIZES), "kind", "axes")

    size = 256 * BYTES
    assert sent(lambda x: x) == {("all-gather", ("tensor",)): size / 2}
    assert sent(lambda x: x.sum(0)) == {("all-reduce", ("tensor",)): BYTES}

    scattered = {("reduce-scatter", ("tensor",)): BYTES / 2}
    assert sent(lambda x: x.sum(0), rows) == scattered

    def repeated(x):
        def body(total, k):
            return total + (x * total * k).sum(0), None

        first = jax.numpy.ones(SUM)
        return jax.lax.scan(body, first, np.arange(5, dtype=np.float32))[0]

    assert sent(repeated) == {("all-reduce", ("tensor",)): 5 * BYTES}
