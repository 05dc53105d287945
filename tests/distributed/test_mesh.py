"""The mesh: which devices stand where, what they hold, and what does not fit."""

import dataclasses

import flax.linen as nn
import jax
import numpy as np
import pytest
from cases import TINY, mesh_of

from diffeq_former.config import Config, MeshConfig, TrainingConfig
from diffeq_former.distributed.mesh import (
    check_fits,
    layout,
    local_sequences,
    make_mesh,
    parameter_shardings,
    shard_batch,
)
from diffeq_former.errors import UserError
from diffeq_former.models.partition import constrain


@pytest.mark.mesh
@pytest.mark.parametrize(
    "asked, shape",
    [
        ({}, (8, 1, 1, 1)),
        ({"fsdp": 2, "tensor": 2}, (2, 2, 1, 2)),
        ({"data": 1, "fsdp": -1, "sequence": 4}, (1, 2, 4, 1)),
        ({"data": 2, "fsdp": 2, "sequence": 1, "tensor": 2}, (2, 2, 1, 2)),
    ],
)
def test_all_devices_are_used(asked, shape):
    mesh = make_mesh(MeshConfig(**asked))
    assert mesh.axis_names == ("data", "fsdp", "sequence", "tensor")
    assert mesh.devices.shape == shape
    assert sorted(d.id for d in mesh.devices.flat) == list(range(8))


@pytest.mark.mesh
@pytest.mark.parametrize("asked", [{"fsdp": 3}, {"data": 4}, {"data": 2, "tensor": 8}])
def test_sizes_that_do_not_multiply_to_the_devices(asked):
    with pytest.raises(UserError, match="config.mesh: .* does not fit 8 devices: "):
        make_mesh(MeshConfig(**asked))


@pytest.mark.mesh
def test_each_device_gets_its_rows():
    mesh = mesh_of(8, fsdp=2, tensor=2)
    rows = np.arange(32, dtype=np.int32).reshape(16, 2)
    assert local_sequences(mesh, 16) == list(range(16))
    sharded = shard_batch({"inputs": rows}, mesh)["inputs"]
    for shard in sharded.addressable_shards:
        (data,), (fsdp,), _, _ = np.where(mesh.devices == shard.device)
        first = 4 * (2 * data + fsdp)
        np.testing.assert_array_equal(shard.data, rows[first : first + 4])


@pytest.mark.mesh
@pytest.mark.parametrize(
    "mesh, changes, message",
    [
        (
            {},
            {"batch_size": 12},
            "config.training.batch_size: expected a multiple of 8, the devices along"
            " data and fsdp, got 12",
        ),
        (
            {"fsdp": 2, "tensor": 2},
            {"batch_size": 24, "per_device_batch_size": 4},
            "config.training.per_device_batch_size: expected 0 or a divisor of 6"
            " (batch_size 24 over 4 devices along data and fsdp), got 4",
        ),
        (
            {"fsdp": 8},
            {"d_model": 20},
            "config.model.d_model: expected a multiple of the mesh's fsdp axis (8), got"
            " 20; use 24, or another config.mesh.fsdp",
        ),
        (
            {"tensor": 8},
            {"num_heads": 8, "num_kv_heads": 4, "block": "llama"},
            "config.model.num_kv_heads: expected a multiple of the mesh's tensor axis"
            " (8), got 4; use 8, or another config.mesh.tensor",
        ),
        (
            {"tensor": 2},
            {"vocab_size": 257},
            "config.model.vocab_size: expected a multiple of the mesh's tensor axis (2)"
            ", got 257; use 258, or another config.mesh.tensor",
        ),
        (
            {"sequence": 8},
            {"seq_len": 12},
            "config.mesh.sequence: expected a divisor of the data's sequence length"
            " (12), got 8",
        ),
    ],
)
def test_what_an_axis_does_not_divide_is_refused(mesh, changes, message):
    seq_len = changes.pop("seq_len", 8)
    model = {k: v for k, v in changes.items() if hasattr(TINY, k)}
    training = {k: v for k, v in changes.items() if k not in model}
    config = Config(
        model=dataclasses.replace(TINY, **model),
        training=TrainingConfig(**({"batch_size": 8} | training)),
    )
    with pytest.raises(UserError) as error:
        check_fits(config, mesh_of(8, **mesh), seq_len)
    assert str(error.value) == message


def test_names_that_no_rule_covers_are_errors():
    box = nn.Partitioned(jax.ShapeDtypeStruct((2, 2), np.float32), ("embed", "colour"))
    with pytest.raises(ValueError, match="'kernel'.*no rule .*'colour'"):
        parameter_shardings({"kernel": box}, mesh_of())
    with pytest.raises(ValueError, match="no rule"):
        parameter_shardings({"kernel": box.unbox()}, mesh_of())
    with layout(mesh_of()), pytest.raises(ValueError, match="did not match a rule"):
        constrain(np.zeros((2, 2)), "batch", "colour")


@pytest.mark.mesh
def test_activations_are_laid_out_only_on_a_mesh():
    """Flax drops constraints silently where it knows of no mesh."""
    laid_out = jax.jit(lambda x: constrain(x, "batch", "length", "mlp"))
    x = np.zeros((8, 8, 8), np.float32)
    assert "sharding_constraint" not in laid_out.lower(x).as_text()
    with layout(mesh_of(8, fsdp=2, sequence=2, tensor=2)):
        text = jax.jit(lambda x: constrain(x, "batch", "length", "mlp")).lower(x)
    assert '[{"data", "fsdp"}, {"sequence"}, {"tensor"}]' in text.as_text()


@dataclasses.dataclass(frozen=True)
class SliceDevice:
    """What the arrangement asks of a device of a TPU slice, of which there are none."""

    id: int
    slice_index: int
    process_index: int = 0
    core_on_chip: int = 0
    platform: str = "tpu"
    device_kind: str = "TPU v4"

    @property
    def coords(self):
        return self.id % 2, self.id // 2 % 2, 0


@pytest.mark.parametrize(
    "axes, slices_along_data_and_fsdp",
    [
        ({"fsdp": 2, "tensor": 2}, [[0, 0], [1, 1], [2, 2], [3, 3]]),
        ({"fsdp": 4, "tensor": 2}, [[0, 0, 1, 1], [2, 2, 3, 3]]),
        ({"data": 1, "fsdp": -1, "sequence": 4}, [[0, 1, 2, 3]]),
    ],
)
def test_the_outer_axes_cross_the_network_between_slices(
    axes, slices_along_data_and_fsdp
):
    devices = [SliceDevice(k, slice_index=k // 4) for k in range(16)]
    grid = make_mesh(MeshConfig(**axes), devices).devices
    index = np.vectorize(lambda device: device.slice_index)(grid)
    assert (index == index[:, :, :1, :1]).all()
    assert index[:, :, 0, 0].tolist() == slices_along_data_and_fsdp


def test_slices_that_no_outer_axis_can_cross():
    devices = [SliceDevice(k, slice_index=k // 4) for k in range(12)]
    with pytest.raises(UserError, match="3 slices of devices cannot be shared by"):
        make_mesh(MeshConfig(data=2, fsdp=2, tensor=3), devices)
