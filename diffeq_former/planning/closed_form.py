"""A plan: what a step of training needs of one device and how long it takes at best."""

import dataclasses
import functools
import math

from diffeq_former.config import Config, MeshConfig
from diffeq_former.distributed.mesh import check_fits, mesh_shape
from diffeq_former.distributed.sharding_rules import (
    MESH_AXES,
    SEQUENCE,
    TENSOR,
    num_row_shares,
)
from diffeq_former.models.attention_kernels import Hardware, choose
from diffeq_former.planning import communication, shapes
from diffeq_former.planning.communication import Sent
from diffeq_former.planning.devices import Device
from diffeq_former.planning.memory import Memory, kept_bytes, memory
from diffeq_former.planning.remat_cost import multiplied, share_of
from diffeq_former.planning.shapes import Sizes, micro_batches
from diffeq_former.training import state as states
from diffeq_former.training.flops import flops_per_token


@dataclasses.dataclass(frozen=True)
class Plan:
    """For one device and one step; sizes in bytes, times in seconds."""

    config: Config
    sizes: Sizes
    device: Device
    memory: Memory
    sent: list[Sent]
    model_flops: float  # by the definition of training/flops.py
    flops: float  # that are computed: with recomputation and generation
    traffic: float  # bytes between the device and its memory

    @property
    def fits(self) -> bool:
        return self.memory.total <= USABLE * self.device.memory

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of each part alone, at the device's data-sheet rates."""
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
        """Compute hides memory traffic, or the reverse; nothing hides what is sent."""
        parts = self.parts
        return max(parts["compute"], parts["memory"]) + parts["link"] + parts["network"]

    @property
    def mfu_bound(self) -> float:
        """If each part hid all others: no run is better."""
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


USABLE = 0.92  # of a device's memory: the rest is the runtime's and lost in gaps


def axis_sizes(c: MeshConfig, num_devices: int) -> Sizes:
    return dict(zip(MESH_AXES, mesh_shape(c, num_devices), strict=True))


def make_plan(config: Config, sizes: Sizes, device: Device) -> Plan:
    """In closed form, for the deepest steps, and rows as long as the model allows.

    Raises:
      UserError: if an axis of the mesh does not divide what it is to cut.
    """
    config, seq_len = config.deepest, config.model.max_len
    needed = needed_memory(config, sizes, device.hardware, seq_len)
    tokens = config.training.batch_size * seq_len / math.prod(sizes.values())
    return Plan(
        config=config,
        sizes=sizes,
        device=device,
        memory=needed,
        sent=communication.sent(config, sizes, seq_len),
        model_flops=tokens * flops_per_token(config.model, seq_len),
        flops=flops_of_step(config, sizes, seq_len),
        traffic=_traffic(config, sizes, seq_len, device, needed),
    )


def needed_memory(
    config: Config, sizes: Sizes, hardware: Hardware, seq_len: int
) -> Memory:
    """Of a step on one device, for rows of that length; raises as `make_plan`."""
    config = config.deepest
    check_fits(config, shapes.abstract_mesh(sizes), seq_len)
    fused = _is_fused(config, sizes, hardware, seq_len)
    parameters, optimizer = state_bytes(config, sizes)
    return memory(config, sizes, parameters, optimizer, seq_len, fused)


def _is_fused(config: Config, sizes: Sizes, hardware: Hardware, seq_len: int) -> bool:
    """Whether the kernel of attention never holds a matrix of scores."""
    return choose(config.model, hardware, seq_len, sizes[SEQUENCE]) != "xla"


def state_bytes(config: Config, sizes: Sizes) -> tuple[int, int]:
    """Of the parameters and of the optimizer's state, on one device; exact."""
    # Whatever changes only how a step is computed is the same state.
    model = dataclasses.replace(
        config.model, remat="none", attention_implementation="auto"
    )
    training = dataclasses.replace(config.training, per_device_batch_size=0)
    same = dataclasses.replace(
        config, model=model, training=training, mesh=MeshConfig()
    )
    return _state_bytes(same, tuple(sizes.items()))


@functools.cache
def _state_bytes(config: Config, sizes: tuple) -> tuple[int, int]:
    state = _described_state(config)
    parts = (state.params, state.opt_state)
    return tuple(shapes.shard_bytes(part, dict(sizes)) for part in parts)


@functools.cache
def _described_state(config: Config) -> states.TrainState:
    """Shapes and shardings; the sizes of this mesh are not looked at."""
    sizes = dict.fromkeys(MESH_AXES, 1)
    return states.abstract(config, shapes.abstract_mesh(sizes))


def flops_of_step(config: Config, sizes: Sizes, seq_len: int) -> float:
    """Products of a step on one device, as its trace has them.

    The steps of the depth, with what the policy computes again; the logits, forward
    twice and back; and the table from the banks, once forward and twice back.
    """
    c = config.model
    queries = seq_len / sizes[SEQUENCE]
    rows = config.training.batch_size / num_row_shares(sizes)
    field = multiplied(share_of(c, sizes[TENSOR])).of(rows, seq_len, queries)
    logits = 8 * rows * queries * c.d_model * c.vocab_size / sizes[TENSOR]
    return c.num_layers * field + logits + _generation_flops(config, sizes)


def _generation_flops(config: Config, sizes: Sizes) -> float:
    c = config.model
    if c.weights != "hypernetwork":
        return 0.0
    again = c.generate_weights == "per_step"
    entries = sum(a.num_bytes(sizes) / a.itemsize for a in shapes.table(c))
    times = c.num_layers * micro_batches(config, sizes) if again else 1
    return 6 * c.time_embed_dim * entries * times


def _traffic(
    config: Config, sizes: Sizes, seq_len: int, device: Device, needed: Memory
) -> float:
    """Bytes to and from memory.

    What a step computes is written and read, forward and, recomputed, backward; the
    logits three times each; the table is read three times with each micro-batch;
    parameters and gradients are read and written twice, the optimizer's state once.
    """
    c, M = config.model, micro_batches(config, sizes)
    fused = _is_fused(config, sizes, device.hardware, seq_len)
    step = kept_bytes(config, sizes, seq_len, fused, "none")
    chunks = -(-seq_len // config.training.loss_chunk)
    per_micro_batch = 4 * c.num_layers * step + 2 * chunks * needed.loss_chunk
    weights = sum(a.num_bytes(sizes, {TENSOR}) for a in shapes.table(c))
    state = 4 * (needed.parameters + needed.gradients) + 2 * needed.optimizer
    return M * (per_micro_batch + 3 * weights) + state
