"""The mesh of the devices of all processes, and shardings over it.

Shape suffixes: B batch, L length.
"""

import contextlib
import math
import sys
from collections.abc import Callable, Iterator

import flax.linen as nn
import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from diffeq_former.config import Config, MeshConfig, ModelConfig, TrainingConfig
from diffeq_former.distributed import sharding_rules
from diffeq_former.distributed.sharding_rules import (
    FSDP,
    MESH_AXES,
    ROWS,
    RULES,
    SEQUENCE,
    TENSOR,
)
from diffeq_former.errors import UserError
from diffeq_former.hardware import Hardware, hardware_of


def make_mesh(c: MeshConfig, devices: list | None = None) -> Mesh:
    """Return a mesh of all devices (or those given) with the configured axes.

    The outermost axis is `data`, followed by `fsdp`: with several TPU slices or nodes,
    these are the axes that cross the network between them.

    Raises:
      UserError: If the product of the sizes is not the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    shape = mesh_shape(c, len(devices))
    slices = len({getattr(d, "slice_index", 0) for d in devices})
    if devices[0].platform == "tpu" and slices > 1:
        grid = _hybrid_grid(shape, slices, devices)
    else:
        grid = mesh_utils.create_device_mesh(
            shape, devices, allow_split_physical_axes=True
        )
    return Mesh(grid, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def mesh_hardware(mesh: Mesh) -> Hardware:
    """Return the hardware of a mesh, whose devices are all of one kind."""
    return hardware_of(mesh.devices.flat[0])


def mesh_shape(c: MeshConfig, num_devices: int) -> tuple[int, ...]:
    """Return the sizes of all axes.

    Raises:
      UserError: If their product is not the number of devices.
    """
    sizes = [getattr(c, axis) for axis in MESH_AXES]
    known = math.prod(size for size in sizes if size != -1)
    if num_devices % known or (-1 not in sizes and known != num_devices):
        named = ", ".join(f"{a}={n}" for a, n in zip(MESH_AXES, sizes, strict=True))
        raise UserError(
            f"config.mesh: {named} does not fit {num_devices} devices: the sizes must "
            "multiply to that; one of them may be -1, for the remainder"
        )
    return tuple(num_devices // known if size == -1 else size for size in sizes)


def _hybrid_grid(shape: tuple[int, ...], slices: int, devices: list) -> np.ndarray:
    """Arrange devices with slices along the outer axes.

    As many slices as possible are placed along `data`, the rest along `fsdp`.
    """
    data, fsdp, sequence, tensor = shape
    outer = math.gcd(data, slices)
    if fsdp % (slices // outer):
        raise UserError(
            f"config.mesh: {slices} slices of devices cannot be shared by data={data} "
            f"and fsdp={fsdp}: their product must be a multiple of {slices}"
        )
    across = (outer, slices // outer, 1, 1)
    within = (data // across[0], fsdp // across[1], sequence, tensor)
    return mesh_utils.create_hybrid_device_mesh(
        within, across, devices, allow_split_physical_axes=True
    )


@contextlib.contextmanager
def layout(mesh: Mesh) -> Iterator[None]:
    """Context that sets the mesh and the rules from logical axes to mesh axes."""
    with jax.set_mesh(mesh), nn.logical_axis_rules(tuple(RULES.items())):
        yield


def on_mesh(mesh: Mesh, function: Callable) -> Callable:
    """Wrap a function to run within `layout(mesh)`; `__wrapped__` is the original."""
    return layout(mesh)(function)


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding of an array that every device holds completely."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of a batch: its leading axis is split over `ROWS`."""
    return NamedSharding(mesh, PartitionSpec(ROWS))


def parameter_shardings(boxed, mesh: Mesh):
    """Return the shardings of parameters that are boxed with the names of their axes.

    Raises:
      ValueError: For a parameter without names, or a name that no rule covers.
    """

    def sharding_of(box) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*[RULES.get(n) for n in box.names]))

    def is_box(x) -> bool:
        return isinstance(x, nn.meta.AxisMetadata)

    for path, box in jax.tree_util.tree_leaves_with_path(boxed, is_leaf=is_box):
        unknown = [n for n in getattr(box, "names", [None]) if n not in RULES]
        if unknown:
            where = jax.tree_util.keystr(path)
            raise ValueError(
                f"{where}: no rule in distributed/sharding_rules.py for {unknown}"
            )
    return jax.tree.map(sharding_of, boxed, is_leaf=is_box)


def num_batch_shards(mesh: Mesh) -> int:
    """Return the number of shards into which the mesh splits a batch."""
    return sharding_rules.num_batch_shards(mesh.shape)


def rows_at_once(c: TrainingConfig, mesh: Mesh) -> int:
    """Return the number of sequences in a micro-batch, over all devices."""
    return min(
        c.batch_size, c.per_device_batch_size * num_batch_shards(mesh) or sys.maxsize
    )


def num_micro_batches(c: TrainingConfig, mesh: Mesh) -> int:
    return c.batch_size // rows_at_once(c, mesh)


def local_sequences(mesh: Mesh, batch_size: int) -> list[int]:
    """Return the sequences of a global batch that this process's devices hold.

    They are numbers in the batch, in ascending order.
    """
    slices = batch_sharding(mesh).addressable_devices_indices_map((batch_size,))
    rows = range(batch_size)
    return sorted({row for (part,) in slices.values() for row in rows[part]})


def shard_batch(batch: dict, mesh: Mesh) -> dict:
    """Assemble global arrays from the local arrays [B, L] of each process.

    B is the number of `local_sequences`.
    """
    sharding = batch_sharding(mesh)
    return jax.tree.map(
        lambda x_BL: jax.make_array_from_process_local_data(sharding, x_BL), batch
    )


def check_fits(config: Config, mesh: Mesh, seq_len: int) -> None:
    """Check that the mesh divides every dimension that is sharded over it.

    Raises:
      UserError: If it does not.
    """
    _check_rows(config, mesh)
    check_model_fits(config.model, mesh)
    check_length_fits(config.training, mesh, seq_len)


def check_model_fits(c: ModelConfig, mesh: Mesh) -> None:
    """Do the part of `check_fits` that concerns the parameters."""
    for axis, field, size in (
        (FSDP, "d_model", c.d_model),
        (TENSOR, "num_heads", c.num_heads),
        (TENSOR, "num_kv_heads", c.kv_heads),
        (TENSOR, "d_ff", c.ff_dim),
        (TENSOR, "vocab_size", c.vocab_size),
    ):
        shards = mesh.shape[axis]
        if size % shards:
            raise UserError(
                f"config.model.{field}: expected a multiple of the mesh's {axis} axis "
                f"({shards}), got {size}; use {-(-size // shards) * shards}, or another"
                f" config.mesh.{axis}"
            )


def check_length_fits(c: TrainingConfig, mesh: Mesh, seq_len: int) -> None:
    """Do the part of `check_fits` that concerns the sequence length."""
    shards = mesh.shape[SEQUENCE]
    for what, size in (
        ("the data's sequence length", seq_len),
        ("config.training.loss_chunk", min(seq_len, c.loss_chunk)),
    ):
        if size % shards:
            raise UserError(
                f"config.mesh.sequence: expected a divisor of {what} ({size}), got "
                f"{shards}"
            )


def _check_rows(config: Config, mesh: Mesh) -> None:
    c, shards, along = config.training, num_batch_shards(mesh), " and ".join(ROWS)
    if c.batch_size % shards:
        raise UserError(
            f"config.training.batch_size: expected a multiple of {shards}, the devices"
            f" along {along}, got {c.batch_size}"
        )
    if c.batch_size % rows_at_once(c, mesh):
        raise UserError(
            "config.training.per_device_batch_size: expected 0 or a divisor of"
            f" {c.batch_size // shards} (batch_size {c.batch_size} over {shards}"
            f" devices along {along}), got {c.per_device_batch_size}"
        )
