"""A plan: closed-form memory, communication and time of a training step on a device."""

import dataclasses
import functools
import math

from diffeq_former.config import Config, MeshConfig
from diffeq_former.distributed.mesh import check_fits, mesh_shape
from diffeq_former.distributed.sharding_rules import (
    MESH_AXES,
    SEQUENCE,
    TENSOR,
    num_batch_shards,
)
from diffeq_former.hardware import Hardware
from diffeq_former.planning import communication, shapes
from diffeq_former.planning.communication import Sent
from diffeq_former.planning.devices import Device
from diffeq_former.planning.memory import Memory, is_fused, kept_bytes, memory
from diffeq_former.planning.muon import orthogonalisation_flops
from diffeq_former.planning.remat_cost import (
    extra_forward_passes,
    multiplied,
    multiplied_forward,
    share_of,
)
from diffeq_former.planning.shapes import Sizes, micro_batches
from diffeq_former.training import state as states
from diffeq_former.training.flops import flops_per_token, solver_steps


@dataclasses.dataclass(frozen=True)
class Plan:
    """Estimates for one device and one training step; in bytes and seconds."""

    config: Config
    sizes: Sizes
    device: Device
    memory: Memory
    sent: list[Sent]
    model_flops: float  # as defined in training/flops.py
    flops: float  # computed, including recomputation and weight generation
    traffic: float  # bytes between the device and its memory

    @property
    def fits(self) -> bool:
        """Whether the step needs no more than the usable memory of the device."""
        return self.memory.total <= USABLE * self.device.memory

    @property
    def parts(self) -> dict[str, float]:
        """Seconds that each part takes on its own, at the device's data-sheet rates."""
        sent = {"link": 0.0, "network": 0.0}
        for message in self.sent:
            inside = communication.reach(message.axes, self.sizes) <= self.device.node
            sent["link" if inside else "network"] += message.num_bytes
        return {
            "compute": self.flops / self.device.peak_flops,
            "memory": self.traffic / self.device.bandwidth,
            "link": sent["link"] / self.device.link,
            "network": sent["network"] / self.device.network,
        }

    @property
    def seconds(self) -> float:
        """Seconds of a step. Only compute and memory traffic overlap."""
        parts = self.parts
        return max(parts["compute"], parts["memory"]) + parts["link"] + parts["network"]

    @property
    def mfu_bound(self) -> float:
        """Upper bound of the MFU: all parts overlap perfectly."""
        return self.model_flops / (self.device.peak_flops * max(self.parts.values()))

    def as_dict(self) -> dict:
        return {
            "mesh": dict(self.sizes),
            "num_micro_batches": micro_batches(self.config, self.sizes),
            "remat": self.config.model.remat,
            "fits": self.fits,
            "device_memory": self.device.memory,
            "memory": self.memory.as_dict(),
            "model_flops": self.model_flops,
            "flops": self.flops,
            "sent": communication.by_kind(self.sent),
            "seconds": self.seconds,
            "seconds_of": self.parts,
            "mfu_bound": self.mfu_bound,
        }


# Fraction of device memory; the rest goes to the runtime and fragmentation.
USABLE = 0.92


def axis_sizes(c: MeshConfig, num_devices: int) -> Sizes:
    """Return the sizes of the mesh axes on `num_devices` devices."""
    return dict(zip(MESH_AXES, mesh_shape(c, num_devices), strict=True))


def make_plan(config: Config, sizes: Sizes, device: Device) -> Plan:
    """Plan a step at the config's largest depth with sequences of length `max_len`.

    Raises:
      UserError: If an axis of the mesh does not divide a dimension that it shards.
    """
    config, seq_len = config.deepest, config.model.max_len
    needed = needed_memory(config, sizes, device.hardware, seq_len)
    tokens = config.training.batch_size * seq_len / math.prod(sizes.values())
    return Plan(
        config=config,
        sizes=sizes,
        device=device,
        memory=needed,
        sent=communication.sent(config, sizes, seq_len, device.hardware),
        model_flops=tokens * flops_per_token(config.model, seq_len),
        flops=flops_of_step(config, sizes, seq_len),
        traffic=_traffic(config, sizes, seq_len, device, needed),
    )


def needed_memory(
    config: Config, sizes: Sizes, hardware: Hardware, seq_len: int
) -> Memory:
    """Return the memory of a step on one device; raises as `make_plan`."""
    config = config.deepest
    check_fits(config, shapes.abstract_mesh(sizes), seq_len)
    return memory(config, sizes, *state_bytes(config, sizes), seq_len, hardware)


def state_bytes(config: Config, sizes: Sizes) -> tuple[int, int]:
    """Return the exact bytes of parameters and optimizer state on one device."""
    # Reset settings that do not affect the state, to share the cached result.
    model = dataclasses.replace(
        config.model, remat="none", attention_implementation="auto"
    )
    training = dataclasses.replace(config.training, per_device_batch_size=0)
    canonical = dataclasses.replace(
        config, model=model, training=training, mesh=MeshConfig()
    )
    return _state_bytes(canonical, tuple(sizes.items()))


@functools.cache
def _state_bytes(config: Config, sizes: tuple) -> tuple[int, int]:
    state = _abstract_state(config)
    parts = (state.params, (state.unaveraged, state.opt_state))
    return tuple(shapes.shard_bytes(part, dict(sizes)) for part in parts)


@functools.cache
def _abstract_state(config: Config) -> states.TrainState:
    """Return shapes and logical shardings of the state, independent of mesh sizes."""
    sizes = dict.fromkeys(MESH_AXES, 1)
    return states.abstract(config, shapes.abstract_mesh(sizes))


def flops_of_step(config: Config, sizes: Sizes, seq_len: int) -> float:
    """Return the matrix-product FLOPs of a training step on one device.

    They are those of the solver steps, including what the backward pass computes again;
    of the logits; of the weight table, forward and backward; and of Muon.
    """
    c = config.model
    queries = seq_len / sizes[SEQUENCE]
    num_sequences = config.training.batch_size / num_batch_shards(sizes)
    share, tokens = share_of(c, sizes[TENSOR]), (num_sequences, seq_len, queries)
    of_a_step = multiplied(share).of(*tokens)
    if extra := extra_forward_passes(c):
        of_a_step += extra * multiplied_forward(share).of(*tokens)
    field = solver_steps(c) * of_a_step
    logits = 6 * num_sequences * queries * c.d_model * c.vocab_size / sizes[TENSOR]
    rest = _generation_flops(config, sizes) + orthogonalisation_flops(config, sizes)
    return field + logits + rest


def _generation_flops(config: Config, sizes: Sizes) -> float:
    c = config.model
    if c.weights != "hypernetwork":
        return 0.0
    per_step = c.generate_weights == "per_step"
    entries = sum(a.num_bytes(sizes) / a.itemsize for a in shapes.table(c))
    times = c.num_layers * micro_batches(config, sizes) if per_step else 1
    return 6 * c.time_embed_dim * entries * times


def _traffic(
    config: Config, sizes: Sizes, seq_len: int, device: Device, needed: Memory
) -> float:
    """Return the bytes that a step reads from and writes to device memory.

    Activations are written and read in the forward pass and, recomputed, in the
    backward pass. Two arrays like the logits are written and read once. Each
    micro-batch reads the table three times. Parameters and gradients are read and
    written twice, the optimizer state once.
    """
    c, M = config.model, micro_batches(config, sizes)
    fused = is_fused(config, sizes, device.hardware, seq_len)
    step = kept_bytes(config, sizes, seq_len, fused, "none")
    chunks = -(-seq_len // config.training.loss_chunk)
    per_micro_batch = 4 * c.num_layers * step + 2 * chunks * needed.loss_chunk
    weights = sum(a.num_bytes(sizes, {TENSOR}) for a in shapes.table(c))
    state = 4 * (needed.parameters + needed.gradients) + 2 * needed.optimizer
    return M * (per_micro_batch + 3 * weights) + state
