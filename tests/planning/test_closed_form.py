"""The closed form against arrays that exist, and against the compiler.

What it says is sent: in sharding/test_collectives.py.
"""

import dataclasses

import jax
import pytest
from cases import (
    TINY,
    WIDE,
    allowed_in_turn,
    mesh_of,
    name,
    shapes_of,
    stabilised,
    with_options,
)
from plans import DEVICE, ROWS, plan_of

from diffeq_former.config import Config, OptimizerConfig, TrainingConfig
from diffeq_former.distributed.sharding_rules import MESH_AXES
from diffeq_former.errors import UserError
from diffeq_former.models.transformer import Transformer
from diffeq_former.planning import shapes
from diffeq_former.planning.closed_form import make_plan, state_bytes
from diffeq_former.planning.compiled import compile_step, memory_bytes
from diffeq_former.planning.devices import DEVICES
from diffeq_former.training import state

ONE = dict.fromkeys(MESH_AXES, 1)
L = WIDE.max_len


def test_a_plan_is_for_the_deepest_of_several_depths():
    fixed = Config(model=dataclasses.replace(TINY, num_layers=6, horizon=1.0))
    several = TrainingConfig(depth_steps=(2, 6, 3))
    drawn = Config(model=dataclasses.replace(TINY, num_layers=2), training=several)
    plans = [make_plan(config, ONE, DEVICE) for config in (fixed, drawn)]
    assert plans[0].as_dict() == plans[1].as_dict()


@pytest.mark.mesh
def test_the_state_has_the_bytes_of_its_real_shards():
    model = dataclasses.replace(TINY, qk_norm=True)
    config, mesh = Config(model=model), mesh_of(8, data=2, fsdp=2, tensor=2)
    created = state.create(config, mesh)

    def held(tree):
        arrays = jax.tree.leaves(tree)
        return [
            sum(x.addressable_shards[k].data.nbytes for x in arrays) for k in range(8)
        ]

    parameters, optimizer = state_bytes(config, dict(mesh.shape))
    assert held(created.params) == [parameters] * 8
    assert held(created.opt_state) == [optimizer] * 8


@pytest.mark.parametrize(
    "config", [*allowed_in_turn(), *stabilised(), with_options()], ids=name
)
def test_the_table_has_the_bytes_of_what_is_generated(config):
    config = dataclasses.replace(config, dtype="bfloat16")
    is_shape = {"is_leaf": lambda x: isinstance(x, tuple)}
    params = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, "float32"),
        shapes_of(config),
        **is_shape,
    )
    generated = jax.eval_shape(
        lambda p: Transformer(config).apply({"params": p}, method="tabulate"), params
    )
    expected = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(generated))
    assert sum(a.num_bytes(ONE) for a in shapes.table(config)) == expected


def test_memory_for_muon():
    """The update of a large bank determines the peak memory of the step."""
    model = dataclasses.replace(WIDE, time_embed_dim=256)
    configs = [
        Config(
            model=model,
            training=TrainingConfig(batch_size=1),
            optimizer=OptimizerConfig(name=optimizer),
        )
        for optimizer in ("adamw", "muon")
    ]
    planned, found = (
        [measure(config) for config in configs] for measure in (update_bytes, temporary)
    )
    assert planned[1] - planned[0] == pytest.approx(found[1] - found[0], rel=0.25)


def update_bytes(config: Config) -> float:
    return make_plan(config, ONE, DEVICE).memory.update


def temporary(config: Config) -> int:
    return memory_bytes(compile_step(config, mesh_of()))["temp"]


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["none", "dots", "full"])
def test_activations_grow_with_depth_as_stated(remat):
    """Where they are most of the memory; the compiler fuses some of what is kept."""

    def temporary(num_layers):
        options = {"num_layers": num_layers, "horizon": 1.0, "remat": remat}
        plan = plan_of({}, rows=512, **options)
        compiled = compile_step(plan.config, mesh_of())
        return plan.memory.backward, memory_bytes(compiled)["temp"]

    (stated, measured), (stated_deep, measured_deep) = map(temporary, (4, 28))
    slope = (measured_deep - measured) / (stated_deep - stated)
    assert 0.7 < slope < 1.1


@pytest.mark.parametrize("remat", ["none", "dots", "full"])
def test_activations_grow_with_rows_and_shrink_with_micro_batches(remat):
    one, two, halved = (
        plan_of({}, rows=rows, M=M, remat=remat).memory.activations
        for rows, M in ((32, 1), (64, 1), (64, 2))
    )
    assert two == 2 * one and halved == one


def test_a_fused_kernel_keeps_no_scores():
    options = {"dtype": "bfloat16", "remat": "none"}
    dense = options | {"attention_implementation": "xla"}
    plan, auto = plan_of({}, **dense), plan_of({}, **options).config
    fused = make_plan(auto, plan.sizes, DEVICES["h100"])
    scores = WIDE.num_layers * ROWS * WIDE.num_heads * L * L * 4
    assert plan.memory.saved_states - fused.memory.saved_states > scores
    masking = {"document_masking": True, "end_of_text": 0}
    masked = plan_of({}, **masking, **options).config
    saved = make_plan(masked, ONE, DEVICES["h100"]).memory.saved_states
    assert saved == fused.memory.saved_states
    whole = dict(remat="none", dtype="float32")  # in which there is no fused kernel
    unfused = make_plan(plan_of({}, **whole).config, ONE, DEVICES["h100"])
    dense = plan_of({}, attention_implementation="xla", **whole)
    assert unfused.memory.activations == dense.memory.activations


@pytest.mark.parametrize(
    ("remat", "num_heads", "arrays"),
    [
        ("full", 4, 0),
        ("save_attention", 4, 1),  # as much padding as there are entries of heads of 64
        ("none", 4, 2),
        ("dots", 4, 4),
        ("dots", 2, 0),
        ("none", 2, 1),
    ],
)
def test_what_a_tpu_saves_beyond_a_gpu(remat, num_heads, arrays):
    wide = {"d_model": 256, "num_heads": num_heads, "max_len": 128, "dtype": "bfloat16"}
    config = plan_of({}, remat=remat, **wide).config
    tpu, gpu = (
        make_plan(config, ONE, DEVICES[name]).memory.saved_states
        for name in ("v5p", "h100")
    )
    array = ROWS * 128 * 256 * 2
    assert tpu - gpu == pytest.approx(WIDE.num_layers * arrays * array, rel=1e-9)


def test_what_leaves_the_node_goes_over_the_network():
    config = Config(model=WIDE, training=TrainingConfig(batch_size=32))
    sizes = ONE | {"data": 2, "fsdp": 8}
    plan = make_plan(config, sizes, DEVICE)
    crossing = sum(m.num_bytes for m in plan.sent if "data" in m.axes)
    assert plan.parts["network"] == pytest.approx(crossing / DEVICE.network)
    assert plan.parts["link"] > 0
    one_node = make_plan(config, ONE | {"data": 2, "fsdp": 4}, DEVICE)
    assert one_node.parts["network"] == 0


def test_a_mesh_that_does_not_divide_the_model():
    with pytest.raises(UserError, match=r"config.model.num_heads: expected a multiple"):
        plan_of({"data": 1, "tensor": 8}, num_heads=4)
