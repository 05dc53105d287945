"""Refusal of runs that cannot fit into memory, and advice for runs that did not."""

import dataclasses
from collections.abc import Iterator

import psutil
from jax.sharding import Mesh

from diffeq_former.config import Config, resolve
from diffeq_former.distributed.mesh import mesh_hardware
from diffeq_former.distributed.sharding_rules import DATA, FSDP
from diffeq_former.errors import UserError
from diffeq_former.hardware import Hardware
from diffeq_former.planning.closed_form import needed_memory, state_bytes
from diffeq_former.planning.memory import Memory, least_memory
from diffeq_former.planning.shapes import Sizes, micro_batches

LISTED = 3  # number of suggested changes

Change = dict[str, int | str | bool]  # new values by `section.field`


def check_memory(config: Config, mesh: Mesh, seq_len: int) -> None:
    """Check that the devices can hold the state and what every training step needs.

    A run that passes may still run out of memory: this is a lower bound.

    Raises:
      UserError: If they cannot.
    """
    capacity = _capacity(mesh)
    if capacity is None:
        return
    config, sizes = config.deepest, dict(mesh.shape)
    needed = least_memory(config, sizes, state_bytes(config, sizes), seq_len)
    total = sum(needed.values())
    if total <= capacity:
        return
    largest = max(needed, key=needed.get)
    if largest in ("batch", "saved states"):
        remedy = (
            f"lower config.training.batch_size ({config.training.batch_size}), or set"
            " per_device_batch_size"
        )
    else:
        remedy = "use a smaller config.model, or shard it over more devices"
    raise UserError(
        f"the config needs at least {total / 1e9:,.4g} GB on each device, which has"
        f" {capacity / 1e9:,.4g} GB; the largest part is the {largest}"
        f" ({needed[largest] / 1e9:,.4g} GB): {remedy}"
    )


def _capacity(mesh: Mesh) -> int | None:
    """Return the bytes of memory of a device; None: unknown. CPU devices share it."""
    device = mesh.local_devices[0]
    if device.platform == "cpu":
        return psutil.virtual_memory().total // len(mesh.local_devices)
    return (device.memory_stats() or {}).get("bytes_limit")


def advice(config: Config, mesh: Mesh, seq_len: int) -> str:
    """List the estimated memory by part, and the changes that save most."""
    sizes, hardware = dict(mesh.shape), mesh_hardware(mesh)
    needed = needed_memory(config, sizes, hardware, seq_len)
    lines = _table(needed, _capacity(mesh))
    savings = sorted(
        _savings(config, sizes, hardware, seq_len, needed), key=lambda pair: -pair[0]
    )
    if savings:
        lines.append("Changes that save most memory, each on its own:")
    for saved, change in savings[:LISTED]:
        flags = " ".join(f"--config.{name}={value}" for name, value in change.items())
        lines.append(f"  {_gigabytes(saved)}  {flags}")
    lines.append(
        "tools/plan.py --search tries combinations of meshes, remat and micro-batches"
    )
    return "\n".join(lines)


def _table(needed: Memory, capacity: int | None) -> list[str]:
    has = f", which has {capacity / 1e9:.4g} GB" if capacity else ""
    parts = {k: v for k, v in needed.fullest.items() if v > needed.total / 100}
    parts |= {"total": needed.total}
    return [
        f"Estimated memory of a training step on each device{has}:",
        *(
            f"  {_gigabytes(size)}  {name.replace('_', ' ')}"
            for name, size in parts.items()
        ),
    ]


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:9.3f} GB"


def _savings(
    config: Config, sizes: Sizes, hardware: Hardware, seq_len: int, needed: Memory
) -> Iterator[tuple[float, Change]]:
    """Yield the bytes that each possible change saves."""
    for change in _changes(config, sizes, seq_len):
        meshed = {axis: change.get(f"mesh.{axis}", n) for axis, n in sizes.items()}
        try:
            candidate = _changed(config, change)
            total = needed_memory(candidate, meshed, hardware, seq_len).total
        except UserError:  # incompatible with the other settings
            continue
        if total < needed.total:
            yield needed.total - total, change


def _changes(config: Config, sizes: Sizes, seq_len: int) -> Iterator[Change]:
    """Yield changes that keep the model as it is, the cheapest first."""
    num_shards = sizes[DATA] * sizes[FSDP]
    num_sequences = config.training.batch_size // (
        num_shards * micro_batches(config, sizes)
    )
    fewer = max(
        (n for n in range(1, num_sequences) if num_sequences % n == 0),
        default=num_sequences,
    )
    yield {"training.per_device_batch_size": fewer}
    yield {"training.loss_chunk": max(1, min(config.training.loss_chunk, seq_len) // 4)}
    yield {f"mesh.{DATA}": 1, f"mesh.{FSDP}": num_shards}
    yield {"model.remat": "full"}
    if config.model.backward == "stored":
        yield {"model.backward": "binomial"}
    yield {"model.generate_weights": "per_step"}
    yield {"optimizer.mu_dtype": "bfloat16"}
    yield {"optimizer.nu_dtype": "bfloat16"}
    yield {"optimizer.factored_bank": True}


def _changed(config: Config, change: Change) -> Config:
    values = dataclasses.asdict(config)
    for name, value in change.items():
        section, field = name.split(".")
        values[section][field] = value
    return resolve(values)
