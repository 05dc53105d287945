"""Closed-form communication volume of a training step.

There is one function for each reason to communicate. Bytes are those of ring
algorithms, as in planning/collectives.py: among n devices, each sends (n - 1) / n of
the array in an all-gather or a reduce-scatter, twice that in an all-reduce, and
(n - 1) / n of its own shard in an all-to-all.
"""

import dataclasses
import math
from collections.abc import Iterator

import jax.numpy as jnp

from diffeq_former.config import Config
from diffeq_former.distributed.sharding_rules import (
    DATA,
    FSDP,
    MESH_AXES,
    SEQUENCE,
    TENSOR,
    num_batch_shards,
)
from diffeq_former.hardware import Hardware
from diffeq_former.models.attention_kernels import LANES
from diffeq_former.models.blocks import linear_specs
from diffeq_former.planning import shapes
from diffeq_former.planning.muon import num_matrices
from diffeq_former.planning.remat_cost import extra_forward_passes
from diffeq_former.planning.shapes import Array, Sizes, micro_batches
from diffeq_former.training.flops import evaluations


@dataclasses.dataclass(frozen=True)
class Sent:
    """A collective operation and the bytes that one device sends in it."""

    kind: str  # all-gather | all-reduce | reduce-scatter | all-to-all
    axes: tuple[str, ...]  # mesh axes over which it communicates
    num_bytes: float


def sent(config: Config, sizes: Sizes, seq_len: int, hardware: Hardware) -> list[Sent]:
    """Return the collectives of a training step that send any bytes."""
    messages = [
        *_gathered_weights(config, sizes),
        *_summed_gradients(config, sizes, seq_len, hardware),
        *_summed_activations(config, sizes, seq_len),
        *_gathered_keys(config, sizes, seq_len),
        *_gathered_gradients(config, sizes, seq_len),
        *_moved_matrices(config, sizes),
    ]
    return [message for message in messages if message.num_bytes]


def _gather(size: float, axes: tuple[str, ...], sizes: Sizes) -> Sent:
    n = math.prod(sizes[axis] for axis in axes)
    return Sent("all-gather", axes, size * (n - 1) / n)


def _sum(size: float, axes: tuple[str, ...], sizes: Sizes) -> Sent:
    n = math.prod(sizes[axis] for axis in axes)
    return Sent("all-reduce", axes, 2 * size * (n - 1) / n)


def _scatter(size: float, axes: tuple[str, ...], sizes: Sizes) -> Sent:
    n = math.prod(sizes[axis] for axis in axes)
    return Sent("reduce-scatter", axes, size * (n - 1) / n)


def _gathered_weights(config: Config, sizes: Sizes) -> Iterator[Sent]:
    """Weights sharded over `fsdp`, which are gathered before use.

    Each micro-batch gathers a step's weights in the forward pass and in the backward
    pass, and whenever the step is taken again; embeddings and an untied head are
    gathered once.
    """
    c, M = config.model, micro_batches(config, sizes)
    times = 1 + max(1, extra_forward_passes(c))
    steps = c.num_layers if c.generate_weights == "per_step" else 1
    for array in filter(lambda a: a.is_cut_by(FSDP), shapes.table(c)):
        whole = array.num_bytes(sizes, {TENSOR})
        yield _gather(times * M * steps * whole, (FSDP,), sizes)
    for array in shapes.outer(c):
        yield _gather(array.num_bytes(sizes, {TENSOR}), (FSDP,), sizes)


def _summed_gradients(
    config: Config, sizes: Sizes, seq_len: int, hardware: Hardware
) -> Iterator[Sent]:
    """Gradients of table, embeddings and head, summed over different tokens.

    With accumulation in table space, sums over `data` and `fsdp` take place once per
    step, those over `sequence` once per micro-batch.
    """
    c, M = config.model, micro_batches(config, sizes)
    reduced = jnp.dtype(c.reduce_dtype).itemsize
    per_step = c.generate_weights == "per_step"
    # Sums over micro-batches are rounded, gradients of one are not.
    accumulated = M > 1 and not per_step
    times, times_sequence = (c.num_layers * M,) * 2 if per_step else (1, M)
    for array in shapes.table(c):
        itemsize = reduced if accumulated else max(array.itemsize, reduced)
        summed = dataclasses.replace(array, itemsize=itemsize)
        scatters = _is_scattered(summed, hardware, sizes, on_tpu=not accumulated)
        yield from _summed_over_rows(summed, times, scatters, sizes)
        whole = times_sequence * summed.num_bytes(sizes, {TENSOR})
        yield _sum(whole, (SEQUENCE,), sizes)
    for array in shapes.outer(c):
        summed = dataclasses.replace(array, itemsize=reduced)
        only_fsdp = sizes[DATA] == 1
        scatters = _is_scattered(summed, hardware, sizes, on_tpu=only_fsdp)
        yield from _summed_over_rows(summed, 1, scatters, sizes)
    head = 4 * c.d_model * c.vocab_size / sizes[TENSOR]
    chunks = math.ceil(seq_len / config.training.loss_chunk)
    yield _sum(M * chunks * head, (SEQUENCE,), sizes)


def _is_scattered(array: Array, hardware: Hardware, sizes: Sizes, on_tpu: bool) -> bool:
    """Whether a sum over `fsdp` is a reduce-scatter, not an all-reduce.

    A device keeps its shard of the sum. Compilers for NVIDIA GPUs always make a
    reduce-scatter of it, those for CPUs never. Those for TPUs do so for the table's
    gradients if they are summed in the backward pass, step by step, and for those of
    embeddings and head without a `data` axis, each if an axis of the shard is a
    multiple of the lanes.

    Args:
      array: The summed array.
      hardware: What the step is compiled for.
      sizes: Sizes of the mesh axes.
      on_tpu: Whether it is one of those that programs for TPUs scatter.
    """
    if not array.is_cut_by(FSDP):
        return False
    if hardware.platform == "tpu":
        return on_tpu and any(n % LANES == 0 for n in array.shard(sizes))
    return hardware.platform == "cuda"


def _summed_over_rows(
    array: Array, times: int, scatters: bool, sizes: Sizes
) -> Iterator[Sent]:
    """Sum an array over `fsdp`, then the shards that devices keep over `data`."""
    whole, shard = (array.num_bytes(sizes, cut) for cut in ({TENSOR}, {TENSOR, FSDP}))
    yield (_scatter if scatters else _sum)(times * whole, (FSDP,), sizes)
    yield _sum(times * shard, (DATA,), sizes)


def _summed_activations(config: Config, sizes: Sizes, seq_len: int) -> Iterator[Sent]:
    """States around linear maps whose inputs or outputs are sharded over `tensor`.

    Sharded inputs need a sum in each forward pass, sharded outputs in the backward
    pass; each term has one map with sharded inputs, its last. The embedding and the
    unembedding add one state each.
    """
    c = config.model
    attention, feed_forward = evaluations(c)
    times = sum(
        feed_forward if "mlp" in spec.axes else attention
        for spec in linear_specs(c).values()
    )
    times += extra_forward_passes(c) * (attention + feed_forward)
    state = _tokens(config, sizes, seq_len) * c.d_model
    itemsize = jnp.dtype(c.dtype).itemsize
    yield _sum(times * state * itemsize, (TENSOR,), sizes)
    yield _sum(state * (4 + itemsize), (TENSOR,), sizes)


def _gathered_keys(config: Config, sizes: Sizes, seq_len: int) -> Iterator[Sent]:
    """Keys and values, which are gathered along `sequence`.

    They are gathered in each forward pass and, with remat, again in the backward pass;
    their gradients are summed.
    """
    c = config.model
    attention, _ = evaluations(c)
    tokens = _tokens(config, sizes, seq_len) * sizes[SEQUENCE]
    entries = 2 * tokens * (c.kv_heads / sizes[TENSOR]) * c.head_size
    size = attention * entries * jnp.dtype(c.dtype).itemsize
    times = 1 + (c.remat != "none") + extra_forward_passes(c)
    yield _gather(times * size, (SEQUENCE,), sizes)
    yield _sum(size, (SEQUENCE,), sizes)


def _gathered_gradients(config: Config, sizes: Sizes, seq_len: int) -> Iterator[Sent]:
    """Float32 gradients of the first states, gathered along `sequence`.

    Each device then adds those of all positions to the gradient of the embeddings.
    """
    tokens = _tokens(config, sizes, seq_len) * sizes[SEQUENCE]
    yield _gather(4 * tokens * config.model.d_model, (SEQUENCE,), sizes)


def _moved_matrices(config: Config, sizes: Sizes) -> Iterator[Sent]:
    """Gradients and momenta of the matrices that Muon orthogonalises, and the results.

    Shards of matrices become whole matrices and shards again, first over `fsdp`, then
    over `tensor`. The gradient of a bank is computed from gathered kernels, at least by
    compilers for GPUs; those for CPUs gather more.
    """
    distributed, on_each = num_matrices(config, sizes)
    momentum = jnp.dtype(config.optimizer.mu_dtype).itemsize
    num_bytes = 2 * (4 + momentum)  # gradient and result, momentum before and after
    for spec in linear_specs(config.model).values():
        kernel = Array(spec.kernel, spec.axes, itemsize=1)
        size = distributed * num_bytes * kernel.num_bytes(sizes)
        for axis in (FSDP, TENSOR):
            if kernel.is_cut_by(axis):
                n = sizes[axis]
                yield Sent("all-to-all", (axis,), size * (n - 1) / n)
        whole = on_each * (4 + momentum) * math.prod(spec.kernel)
        yield _gather(whole, (FSDP, TENSOR), sizes)
    if config.optimizer.name == "muon" and config.model.weights == "hypernetwork":
        for array in shapes.table(config.model):
            in_float32 = dataclasses.replace(array, itemsize=4)
            yield _gather(in_float32.num_bytes(sizes, {TENSOR}), (FSDP,), sizes)


def _tokens(config: Config, sizes: Sizes, seq_len: int) -> float:
    """Return the number of tokens per step on one device."""
    num_shards = num_batch_shards(sizes) * sizes[SEQUENCE]
    return config.training.batch_size * seq_len / num_shards


def by_kind(messages: list[Sent]) -> dict[str, float]:
    """Return the total bytes of each kind of collective."""
    kinds = {message.kind: 0.0 for message in messages}
    for message in messages:
        kinds[message.kind] += message.num_bytes
    return kinds


def reach(axes: tuple[str, ...], sizes: Sizes) -> int:
    """Return the number of adjacent devices that a collective over these axes spans.

    The last mesh axis is the innermost.
    """
    first = min(MESH_AXES.index(axis) for axis in axes if sizes[axis] > 1)
    return math.prod(sizes[axis] for axis in MESH_AXES[first:])
