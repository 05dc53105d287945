"""A step of training on meshes: equal to one device's, with no needless traffic."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from cases import EVERY_MESH, OPTIONS, TINY, mesh_of, params_of

from diffeq_former.config import Config, ModelConfig, OptimizerConfig, TrainingConfig
from diffeq_former.distributed.mesh import num_batch_shards, shard_batch
from diffeq_former.distributed.sharding_rules import RULES
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.weight_sources import SOURCES
from diffeq_former.training import state
from diffeq_former.training.parts import Parts, get_bank, partition
from diffeq_former.training.state import TrainState
from diffeq_former.training.step import make_train_step

ROWS = 16
SOLVER_OF = {"hypernetwork": "euler", "layer_table": "lie_trotter", "shared": "strang"}

pytestmark = pytest.mark.mesh
every_mesh = pytest.mark.parametrize("mesh", EVERY_MESH)


def config_of(block: str, weights: str, at_once: int = 0, chunk: int = 4) -> Config:
    model = {"block": block, "weights": weights, "solver": SOLVER_OF[weights]}
    if weights == "shared":  # wider: norms of small heads magnify rounding errors
        model |= OPTIONS | {"d_model": 2 * TINY.d_model}
    return Config(
        model=dataclasses.replace(TINY, num_layers=2, num_heads=8, **model),
        # Without clipping Adam's mean is the gradient. A large eps: else its first step
        # would be the sign of rounding errors.
        optimizer=OptimizerConfig(
            warmup_fraction=0.0, learning_rate=0.1, eps=1e-2, clip_norm=0.0
        ),
        training=TrainingConfig(
            batch_size=ROWS,
            per_device_batch_size=at_once,
            loss_chunk=chunk,
            transport_cost=0.1,
            smoothness=0.1,
        ),
    )


def batch_of(rows: int) -> dict:
    """Rows with different numbers of targets."""
    random = np.random.default_rng(0)
    tokens = random.integers(0, TINY.vocab_size, (rows, TINY.max_len + 1), np.int32)
    targets = tokens[:, 1:].copy()
    targets[: rows // 3, 2:] = -1
    return {"inputs": tokens[:, :-1], "targets": targets}


def parameters(model: ModelConfig):
    return jax.tree.map(np.asarray, params_of(model))


def step_on(mesh, config: Config):
    params = parameters(config.model)
    opt_state, zero = (
        state.make_update(config).init(partition(config, params)),
        np.int32(0),
    )
    before = TrainState(zero, params, {}, opt_state, zero, zero, np.float32(0), zero)
    before = jax.device_put(before, state.shardings(config, mesh))
    return make_train_step(config, mesh)(before, shard_batch(batch_of(ROWS), mesh))


@functools.cache
def step_on_one_device(config: Config):
    return jax.tree.map(np.asarray, step_on(mesh_of(), config))


def assert_near(found: TrainState, expected: TrainState, rtol: float):
    leaves = jax.tree.leaves_with_path(found)
    for (path, x), wanted in zip(leaves, jax.tree.leaves(expected), strict=True):
        atol = rtol * max(np.abs(wanted).max(), 1e-3)
        where = jax.tree_util.keystr(path)
        np.testing.assert_allclose(x, wanted, rtol=0, atol=atol, err_msg=where)


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


# Every two of mesh, block and source meet; at first every axis, block and source.
@pytest.mark.parametrize(
    "mesh, block, weights",
    [
        slow("data", "gpt", "layer_table"),
        slow("data", "llama", "hypernetwork"),
        slow("data", "gpt", "shared"),
        slow("fsdp", "llama", "shared"),
        slow("fsdp", "gpt", "hypernetwork"),
        slow("fsdp", "llama", "layer_table"),
        slow("sequence", "gpt", "hypernetwork"),
        slow("sequence", "llama", "layer_table"),
        slow("sequence", "gpt", "shared"),
        slow("tensor", "llama", "shared"),
        slow("tensor", "gpt", "layer_table"),
        slow("tensor", "llama", "hypernetwork"),
        ("data-fsdp-tensor", "gpt", "hypernetwork"),
        ("data-fsdp-tensor", "llama", "layer_table"),
        slow("data-fsdp-tensor", "gpt", "shared"),
        ("fsdp-sequence-tensor", "llama", "shared"),
        slow("fsdp-sequence-tensor", "gpt", "layer_table"),
        slow("fsdp-sequence-tensor", "llama", "hypernetwork"),
    ],
)
def test_a_step_equals_that_of_one_device(mesh, block, weights, capfd):
    devices, chunk = mesh_of(8, **EVERY_MESH[mesh]), 8 if mesh == "sequence" else 4
    at_once = (
        0 if mesh in ("fsdp", "sequence") else ROWS // num_batch_shards(devices) // 2
    )
    config = config_of(block, weights, at_once, chunk)
    after, metrics = step_on(devices, config)
    expected, expected_metrics = step_on_one_device(config_of(block, weights))
    assert_near(after, expected, 1e-5)
    for name, value in expected_metrics.items():
        assert metrics[name] == pytest.approx(value, rel=1e-5), name
    moved = jax.tree.map(
        lambda a, b: np.abs(a - b).max(), expected.params, parameters(config.model)
    )
    assert min(jax.tree.leaves(moved)) > 1e-3
    assert "Involuntary full rematerialization" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("mesh", "backward"),
    [("data-fsdp-tensor", "binomial"), ("fsdp-sequence-tensor", "reversible")],
)
def test_a_backward_pass_that_stores_less_equals_that_of_one_device(
    mesh, backward, capfd
):
    devices = mesh_of(8, **EVERY_MESH[mesh])
    at_once = ROWS // num_batch_shards(devices) // 2
    config, expected = (
        dataclasses.replace(
            config,
            model=dataclasses.replace(
                config.model, num_layers=3, backward=backward, num_checkpoints=1
            ),
        )
        for config in (
            config_of("gpt", "hypernetwork", at_once),
            config_of("gpt", "hypernetwork"),
        )
    )
    assert_near(step_on(devices, config)[0], step_on_one_device(expected)[0], 1e-5)
    assert "Involuntary full rematerialization" not in capfd.readouterr().err


@pytest.mark.parametrize("name", ["muon", "weight_space_muon"])
def test_an_update_by_muon_equals_that_of_one_device(name, capfd):
    config = config_of("gpt", "hypernetwork")
    config = dataclasses.replace(
        config,
        optimizer=dataclasses.replace(config.optimizer, name=name),
    )
    after, _ = step_on(mesh_of(8, **EVERY_MESH["data-fsdp-tensor"]), config)
    expected, _ = step_on(mesh_of(), config)
    assert_near(after, expected, 1e-4)
    assert "Involuntary full rematerialization" not in capfd.readouterr().err


@functools.cache
def boxed_parameters(model: ModelConfig):
    return jax.eval_shape(lambda: state._init_boxed(model, 0))


@every_mesh
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("weights", sorted(SOURCES))
def test_parameters_are_made_where_the_rules_put_them(mesh, block, weights):
    config, mesh = config_of(block, weights), mesh_of(8, **EVERY_MESH[mesh])
    places = state.shardings(config, mesh)
    of_banks = places.opt_state.banks.items()
    means = Parts(
        rest=places.opt_state.rest[0].mu,
        banks={name: get_bank(name, bank[0].mu) for name, bank in of_banks},
        frozen={},
    )
    for box, place, of_mean in zip(
        jax.tree.leaves(
            boxed_parameters(config.model), is_leaf=lambda x: hasattr(x, "names")
        ),
        jax.tree.leaves(places.params),
        jax.tree.leaves(means.merge()),
        strict=True,
    ):
        axes = [RULES[name] for name in box.names if RULES[name]]
        parts = np.prod([mesh.shape[axis] for axis in axes], dtype=int)
        local = place.shard_shape(box.value.shape)
        assert np.prod(local) * parts == np.prod(box.value.shape)
        assert of_mean == place
