"""Plans of a model wide enough that what they leave out is small."""

import dataclasses

from cases import WIDE

from diffeq_former.config import Config, MeshConfig, TrainingConfig
from diffeq_former.hardware import CPU
from diffeq_former.planning.closed_form import Plan, axis_sizes, make_plan
from diffeq_former.planning.devices import DEVICES

ROWS = 32
# With the attention kernel of CPUs, for which the plans are compiled.
DEVICE = dataclasses.replace(DEVICES["h100"], hardware=CPU)


def plan_of(mesh: dict[str, int], M: int = 1, rows: int = ROWS, **model) -> Plan:
    """For eight devices, or for one where the mesh has no axes; M micro-batches."""
    sizes = axis_sizes(MeshConfig(**mesh), 8 if mesh else 1)
    at_once = rows // (sizes["data"] * sizes["fsdp"] * M)
    config = Config(
        model=dataclasses.replace(WIDE, **model),
        training=TrainingConfig(
            batch_size=rows, per_device_batch_size=at_once, loss_chunk=8
        ),
        mesh=MeshConfig(**mesh),
    )
    return make_plan(config, sizes, DEVICE)
