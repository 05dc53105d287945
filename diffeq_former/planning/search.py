"""Search over meshes, remat policies and micro-batches, ranked by estimated time."""

import dataclasses
import itertools
import math
from collections.abc import Iterator

from diffeq_former.config import Config, MeshConfig
from diffeq_former.config.model_validation import validate_model
from diffeq_former.distributed.sharding_rules import MESH_AXES, num_batch_shards
from diffeq_former.errors import UserError
from diffeq_former.models.attention_kernels import choose
from diffeq_former.models.remat import POLICIES
from diffeq_former.planning.closed_form import Plan, make_plan
from diffeq_former.planning.devices import Device
from diffeq_former.planning.shapes import Sizes


def search(config: Config, num_devices: int, device: Device) -> list[Plan]:
    """Return the plans of all valid meshes, remat policies and micro-batch sizes.

    Plans that fit come first, by estimated time, then by memory; the others follow, by
    memory, then by time.

    Raises:
      UserError: If no mesh of that many devices divides the model and the batch, or if
        the devices do not support the configured attention kernel.
    """
    choose(config.model, device.hardware, config.model.max_len)
    plans = list(_plans(config, num_devices, device))
    if not plans:
        raise UserError(
            f"{num_devices} devices: no mesh of them divides the model and "
            f"config.training.batch_size ({config.training.batch_size}); use another "
            "number, or another batch size"
        )

    def rank(plan: Plan):
        total, seconds = plan.memory.total, plan.seconds
        return (0, seconds, total) if plan.fits else (1, total, seconds)

    return sorted(plans, key=rank)


def _plans(config: Config, num_devices: int, device: Device) -> Iterator[Plan]:
    choices = (
        (sizes, batch_size, remat)
        for sizes in _meshes(num_devices)
        for batch_size in _divisors(
            config.training.batch_size // num_batch_shards(sizes)
        )
        for remat in POLICIES
    )
    for sizes, batch_size, remat in choices:
        candidate = dataclasses.replace(
            config,
            mesh=MeshConfig(**sizes),
            model=dataclasses.replace(config.model, remat=remat),
            training=dataclasses.replace(
                config.training, per_device_batch_size=batch_size
            ),
        )
        try:
            validate_model(candidate.model)
            plan = make_plan(candidate, sizes, device)
        except UserError:  # the mesh does not divide the model or the batch
            continue
        yield plan


def _meshes(num_devices: int) -> Iterator[Sizes]:
    divisors = _divisors(num_devices)
    for sizes in itertools.product(divisors, repeat=len(MESH_AXES)):
        if math.prod(sizes) == num_devices:
            yield dict(zip(MESH_AXES, sizes, strict=True))


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
