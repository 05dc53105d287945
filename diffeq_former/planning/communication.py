"""What a device sends in a step of training, in closed form.

One function for each reason to send. Bytes are those of ring algorithms, as in
planning/collectives.py: n devices that gather an array of some size each send
(n - 1) / n of it, and twice that to sum one that all of them hold.
"""

import dataclasses
import math
from collections.abc import Iterator

import jax.numpy as jnp

from diffeq_former.config import Config
from diffeq_former.distributed.sharding_rules import (
    FSDP,
    MESH_AXES,
    ROWS,
    SEQUENCE,
    TENSOR,
    num_row_shares,
)
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.units import Linear
from diffeq_former.planning import shapes
from diffeq_former.planning.shapes import Array, Sizes, micro_batches
from diffeq_former.training.flops import evaluations


@dataclasses.dataclass(frozen=True)
class Sent:
    kind: str  # all-gather | all-reduce
    axes: tuple[str, ...]  # of the mesh, along which it goes
    num_bytes: float  # that a device sends


def sent(config: Config, sizes: Sizes, seq_len: int) -> list[Sent]:
    """All that a device sends in a step."""
    messages = [
        *_gathered_weights(config, sizes),
        *_summed_gradients(config, sizes, seq_len),
        *_summed_activations(config, sizes, seq_len),
        *_gathered_keys(config, sizes, seq_len),
    ]
    return [message for message in messages if message.num_bytes]


def _gather(size: float, axes: tuple[str, ...], sizes: Sizes) -> Sent:
    n = math.prod(sizes[axis] for axis in axes)
    return Sent("all-gather", axes, size * (n - 1) / n)


def _sum(size: float, axes: tuple[str, ...], sizes: Sizes) -> Sent:
    n = math.prod(sizes[axis] for axis in axes)
    return Sent("all-reduce", axes, 2 * size * (n - 1) / n)


def _gathered_weights(config: Config, sizes: Sizes) -> Iterator[Sent]:
    """Weights cut by `fsdp`: the table's for each micro-batch, forward and backward.

    The embeddings and the unembedding are gathered once.
    """
    c, M = config.model, micro_batches(config, sizes)
    steps = c.num_layers if c.generate_weights == "per_step" else 1
    for array in filter(lambda a: a.is_cut_by(FSDP), shapes.table(c)):
        whole = array.num_bytes(sizes, {TENSOR})
        yield _gather(2 * M * steps * whole, (FSDP,), sizes)
    for array in [*shapes.lookups(c), shapes.unembedding(c)]:
        yield _gather(array.num_bytes(sizes, {TENSOR}), (FSDP,), sizes)


def _summed_gradients(config: Config, sizes: Sizes, seq_len: int) -> Iterator[Sent]:
    """Gradients of the table and of both ends, over all that have other tokens.

    With accumulation in table space they cross `data` and `fsdp` once a step, in
    float32; `sequence` is crossed with each micro-batch.
    """
    c, M = config.model, micro_batches(config, sizes)
    per_step = c.generate_weights == "per_step"
    for array in shapes.table(c):
        if per_step:
            times = c.num_layers * M
            yield from _summed(array, times, times, sizes)
        else:
            summed = dataclasses.replace(array, itemsize=4) if M > 1 else array
            yield from _summed(summed, 1, M, sizes)
    tied = BLOCKS[c.block].tied_head(c) and M > 1
    ends = [dataclasses.replace(a, itemsize=4) for a in shapes.lookups(c)]
    for array in ends:
        yield _sum(array.num_bytes(sizes, {TENSOR}), ROWS, sizes)
        yield _sum(M * array.num_bytes(sizes, {TENSOR}), (SEQUENCE,), sizes)
    head = shapes.unembedding(c).num_bytes(sizes, {TENSOR})
    if not tied:
        yield _sum(head, ROWS, sizes)
    chunks = math.ceil(seq_len / config.training.loss_chunk)
    yield _sum(M * chunks * head, (SEQUENCE,), sizes)


def _summed(array: Array, times: int, times_along: int, sizes: Sizes) -> Iterator[Sent]:
    """Summed over `fsdp` whole, then each share over the other axes that cut rows."""
    whole, share = (array.num_bytes(sizes, cut) for cut in ({TENSOR}, {TENSOR, FSDP}))
    yield _sum(times * whole, (FSDP,), sizes)
    yield _sum(times * share, tuple(a for a in ROWS if a != FSDP), sizes)
    yield _sum(times_along * whole, (SEQUENCE,), sizes)


def _summed_activations(config: Config, sizes: Sizes, seq_len: int) -> Iterator[Sent]:
    """States where the inputs of a linear map are cut by `tensor`, or its outputs are.

    The former are summed forward, the latter backward; and a state once at each end.
    """
    c = config.model
    attention, feed_forward = evaluations(c)
    linears = [u for u in BLOCKS[c.block].units(c).values() if isinstance(u, Linear)]
    times = sum(feed_forward if "mlp" in u.axes else attention for u in linears)
    state = _tokens(config, sizes, seq_len) * c.d_model
    itemsize = jnp.dtype(c.dtype).itemsize
    yield _sum(times * state * itemsize, (TENSOR,), sizes)
    yield _sum(state * (4 + itemsize), (TENSOR,), sizes)


def _gathered_keys(config: Config, sizes: Sizes, seq_len: int) -> Iterator[Sent]:
    """Keys and values of whole sequences, forward and, if recomputed, backward.

    Their gradients are summed.
    """
    c = config.model
    attention, _ = evaluations(c)
    tokens = _tokens(config, sizes, seq_len) * sizes[SEQUENCE]
    entries = 2 * tokens * (c.kv_heads / sizes[TENSOR]) * c.head_dim
    size = attention * entries * jnp.dtype(c.dtype).itemsize
    yield _gather(size * (1 if c.remat == "none" else 2), (SEQUENCE,), sizes)
    yield _sum(size, (SEQUENCE,), sizes)


def _tokens(config: Config, sizes: Sizes, seq_len: int) -> float:
    """Of a step, on one device."""
    cut = num_row_shares(sizes) * sizes[SEQUENCE]
    return config.training.batch_size * seq_len / cut


def by_kind(messages: list[Sent]) -> dict[str, float]:
    kinds = {message.kind: 0.0 for message in messages}
    for message in messages:
        kinds[message.kind] += message.num_bytes
    return kinds


def reach(axes: tuple[str, ...], sizes: Sizes) -> int:
    """Among how many neighbours a message stays; the last axis is the innermost."""
    first = min(MESH_AXES.index(axis) for axis in axes if sizes[axis] > 1)
    return math.prod(sizes[axis] for axis in MESH_AXES[first:])
