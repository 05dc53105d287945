"""The devices of this process as a mesh, and what lies where on it.

B batch, L length.
"""

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from diffeq_former.config import TrainingConfig
from diffeq_former.errors import UserError

DATA_AXIS = "data"


def local_mesh() -> Mesh:
    """All local devices along the one axis "data"."""
    devices = jax.local_devices()
    return jax.make_mesh(
        (len(devices),), (DATA_AXIS,), axis_types=(AxisType.Auto,), devices=devices
    )


def replicated(mesh: Mesh) -> NamedSharding:
    """Every device holds all of it: parameters and optimizer state."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh, batch_axis: int = 0) -> NamedSharding:
    """Every device holds its share of the rows, which are counted by `batch_axis`."""
    return NamedSharding(mesh, PartitionSpec(*[None] * batch_axis, DATA_AXIS))


def shard_batch(batch: dict, mesh: Mesh) -> dict:
    """Puts arrays [B, L] of the host on the devices, each its rows."""
    return jax.device_put(batch, batch_sharding(mesh))


def check_batch_divides(c: TrainingConfig, mesh: Mesh) -> None:
    """Raises UserError unless every device gets the same rows of a micro-batch."""
    rows, devices = c.batch_size // c.num_micro_batches, mesh.shape[DATA_AXIS]
    if rows % devices:
        multiple = devices * c.num_micro_batches
        raise UserError(
            f"config.training.batch_size: expected a multiple of {multiple} ({devices} "
            f"devices times {c.num_micro_batches} micro-batches), got {c.batch_size}"
        )
