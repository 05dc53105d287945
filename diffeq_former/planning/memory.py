"""Closed-form memory of a training step on one device.

The state (parameters, optimizer) and the batch are always held. The backward pass and
the update follow one another, so the larger of the two is added: gradients of the banks
exist only after all activations are freed.
"""

import dataclasses

import jax.numpy as jnp

from diffeq_former.config import Config, ModelConfig
from diffeq_former.config.model_schema import SAVE_WEIGHTS
from diffeq_former.distributed.sharding_rules import (
    FSDP,
    SEQUENCE,
    TENSOR,
    num_batch_shards,
)
from diffeq_former.hardware import Hardware
from diffeq_former.models.attention_kernels import LANES, choose
from diffeq_former.planning import shapes
from diffeq_former.planning.muon import orthogonalisation_bytes
from diffeq_former.planning.remat_cost import kept, share_of
from diffeq_former.planning.shapes import Sizes, micro_batches


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of a training step on one device, by purpose."""

    parameters: float
    optimizer: float
    gradients: float  # as the parameters, but only one bank at a time
    table: float  # generated weights
    table_gradients: float  # with respect to the table
    embeddings: float  # gathered embeddings and unembedding, and their gradients
    saved_states: float  # what the forward pass saves of all solver steps
    one_step: float  # recomputed activations of one solver step
    loss_chunk: float  # logits and their gradient
    orthogonalisation: float  # copies of the largest kernels, by Muon
    update_copies: float  # a bank and its moments, except on CPUs: new beside old
    batch: float

    @property
    def activations(self) -> float:
        """Saved states, and the larger of a recomputed step and the loss chunk."""
        return self.saved_states + max(self.one_step, self.loss_chunk)

    @property
    def backward(self) -> float:
        """Memory of the backward pass, beside state and batch."""
        return self.table + self.table_gradients + self.embeddings + self.activations

    @property
    def update(self) -> float:
        """Memory of the update, beside state and batch.

        The gradients of the table are then reduced: as large as the table.
        """
        copies = self.orthogonalisation + self.update_copies
        return self.gradients + 2 * self.table + copies

    @property
    def total(self) -> float:
        """The peak memory of the step."""
        state = self.parameters + self.optimizer + self.batch
        return state + max(self.backward, self.update)

    @property
    def fullest(self) -> dict[str, float]:
        """The parts held at peak memory, largest first; they sum to `total`."""
        names = ["parameters", "optimizer", "batch", "table"]
        if self.backward > self.update:
            names += ["table_gradients", "embeddings", "saved_states"]
            names.append(max("one_step", "loss_chunk", key=lambda n: getattr(self, n)))
            rest = {}
        else:
            names += ["gradients", "orthogonalisation", "update_copies"]
            rest = {"table_gradients": self.table}
        parts = {name: getattr(self, name) for name in names} | rest
        return dict(sorted(parts.items(), key=lambda part: -part[1]))

    def as_dict(self) -> dict[str, int | str]:
        whole = {name: round(size) for name, size in dataclasses.asdict(self).items()}
        return whole | {
            "activations": round(self.activations),
            "fullest_in": "backward" if self.backward > self.update else "update",
            "total": round(self.total),
        }


def memory(
    config: Config,
    sizes: Sizes,
    parameters: float,
    optimizer: float,
    seq_len: int,
    hardware: Hardware,
) -> Memory:
    """Return the memory that a training step needs on one device.

    Args:
      config: Config of the run.
      sizes: Sizes of the mesh axes.
      parameters: Bytes of the parameter shards on a device.
      optimizer: Bytes of the optimizer-state shards on a device.
      seq_len: Sequence length.
      hardware: What the step is compiled for.
    """
    fused = is_fused(config, sizes, hardware, seq_len)
    one_step = kept_bytes(config, sizes, seq_len, fused, "none")
    per_step = config.model.generate_weights == "per_step"
    accumulated = micro_batches(config, sizes) > 1
    recomputes = config.model.remat != "none" or config.model.backward != "stored"
    return Memory(
        parameters=parameters,
        optimizer=optimizer,
        gradients=parameters - _factored(config, sizes),
        table=_table(config.model, sizes),
        table_gradients=parameters * (1 + accumulated)
        if per_step
        else _table_gradients(config, sizes, hardware),
        embeddings=_embeddings(config, sizes),
        saved_states=_saved_states(config, sizes, seq_len, hardware),
        one_step=one_step * recomputes + _whole_keys(config, sizes, seq_len),
        loss_chunk=_loss_chunk(config, sizes, seq_len),
        orthogonalisation=orthogonalisation_bytes(config, sizes),
        update_copies=shapes.largest_bank(config.model, sizes)
        * (1 + optimizer / parameters)
        if hardware.platform != "cpu"
        else 0.0,
        batch=_batch(config, sizes, seq_len),
    )


def is_fused(config: Config, sizes: Sizes, hardware: Hardware, seq_len: int) -> bool:
    """Whether the attention kernel never materialises the score matrix."""
    return choose(config.model, hardware, seq_len, sizes[SEQUENCE]) != "xla"


def least_memory(
    config: Config, sizes: Sizes, state: tuple[int, int], seq_len: int
) -> dict[str, float]:
    """Return the parts of the memory that no step on one device can do without.

    Unlike those of `memory` they need no trace of a step: with any remat policy, states
    between the solver steps are saved.

    Args:
      config: Config of the run.
      sizes: Sizes of the mesh axes.
      state: Bytes of the shards of the parameters and of the optimizer state.
      seq_len: Sequence length.
    """
    c, (parameters, optimizer) = config.model, state
    num_states = c.num_layers if c.backward == "stored" else 1
    return {
        "parameters": parameters,
        "optimizer": optimizer,
        "table": _table(c, sizes),
        "batch": _batch(config, sizes, seq_len),
        "saved states": num_states * _state(config, sizes, seq_len, c.dtype),
    }


def _saved_states(
    config: Config, sizes: Sizes, seq_len: int, hardware: Hardware
) -> float:
    """Return the bytes of the states that the backward pass holds, on one device."""
    c = config.model
    if c.backward == "binomial":
        return (c.num_checkpoints + 1) * _state(config, sizes, seq_len, c.dtype)
    if c.backward == "reversible":  # two states and their gradients
        return 4 * _state(config, sizes, seq_len, "float32")
    fused = is_fused(config, sizes, hardware, seq_len)
    of_a_step = kept_bytes(config, sizes, seq_len, fused, c.remat)
    return c.num_layers * (of_a_step + _added_by_tpu(config, sizes, seq_len, hardware))


def _state(config: Config, sizes: Sizes, seq_len: int, dtype: str) -> float:
    """Return the bytes of the states of a micro-batch, on one device."""
    positions = _sequences(config, sizes) * seq_len / sizes[SEQUENCE]
    return positions * config.model.d_model * jnp.dtype(dtype).itemsize


def kept_bytes(
    config: Config, sizes: Sizes, seq_len: int, fused: bool, remat: str
) -> float:
    """Return the bytes that a remat policy saves of one solver step, on one device.

    They are those of one micro-batch; `fused` as by `is_fused`.
    """
    share = share_of(dataclasses.replace(config.model, remat=remat), sizes[TENSOR])
    amount = kept(share)
    if fused:
        amount = dataclasses.replace(amount, per_pair=0.0)
    return amount.of(_sequences(config, sizes), seq_len, seq_len / sizes[SEQUENCE])


def _added_by_tpu(
    config: Config, sizes: Sizes, seq_len: int, hardware: Hardware
) -> float:
    """Return the bytes that a TPU saves of one solver step beyond `kept_bytes`.

    It pads the last axis of an array to its lanes: that of a head in the output that
    its attention kernel saves, and in saved projections to query, key and value. With
    remat "none", the projection after the kernel saves that output once more.
    """
    c = config.model
    if choose(c, hardware, seq_len, sizes[SEQUENCE]) != "splash":
        return 0.0
    padding, entries = -c.head_size % LANES, 0
    if c.remat not in ("full", "save_weights"):
        entries += c.num_heads * padding
    if c.remat == "dots":
        entries += (c.num_heads + 2 * c.kv_heads) * padding
    if c.remat == "none":
        entries += c.num_heads * c.head_size
    positions = _sequences(config, sizes) * seq_len / sizes[SEQUENCE]
    return positions * entries / sizes[TENSOR] * jnp.dtype(c.dtype).itemsize


def _batch(config: Config, sizes: Sizes, seq_len: int) -> float:
    """Return the bytes of the inputs and targets of a batch."""
    return 2 * 4 * config.training.batch_size * seq_len / num_batch_shards(sizes)


def _sequences(config: Config, sizes: Sizes) -> float:
    """Return the number of sequences per micro-batch on one device."""
    num_shards = micro_batches(config, sizes) * num_batch_shards(sizes)
    return config.training.batch_size / num_shards


def _factored(config: Config, sizes: Sizes) -> float:
    """Return the bytes saved by bank gradients that stay factored during the update.

    Only one bank gradient, at most the largest, is materialised at a time. With
    generate_weights="per_step" all of them are.
    """
    if config.model.generate_weights == "per_step":
        return 0.0
    banks = sum(array.num_bytes(sizes) for array in shapes.banks(config.model))
    return banks - shapes.largest_bank(config.model, sizes)


def _table(c: ModelConfig, sizes: Sizes) -> float:
    """Return the bytes of the generated weights, sharded as the stored ones."""
    saved = c.remat in ("none", *SAVE_WEIGHTS) and c.generate_weights == "per_step"
    copies = c.num_layers if saved else 1
    return copies * sum(array.num_bytes(sizes) for array in shapes.table(c))


def _table_gradients(config: Config, sizes: Sizes, hardware: Hardware) -> float:
    """Return the bytes of the gradients of the table, in the compute dtype.

    With gradient accumulation, each batch shard has its own, which are not sharded over
    `fsdp`, and their float32 sum, of which programs for TPUs hold two: before and after
    an addition. Otherwise those of a step are reduced before those of the next are
    computed.
    """
    table = shapes.table(config.model)
    if micro_batches(config, sizes) == 1:
        return sum(array.num_bytes(sizes) for array in table)
    sums = 2 if hardware.platform == "tpu" else 1
    whole = [(array.num_bytes(sizes, {TENSOR}), array.itemsize) for array in table]
    return sum(size * (1 + 4 * sums / itemsize) for size, itemsize in whole)


def _embeddings(config: Config, sizes: Sizes) -> float:
    """Return the bytes of embeddings and unembedding: gathered arrays and gradients.

    Beside them there is the unembedding in the compute dtype.
    """
    c, accumulated = config.model, micro_batches(config, sizes) > 1
    arrays = sum(array.num_bytes(sizes, {TENSOR}) for array in shapes.outer(c))
    head = c.d_model * c.vocab_size * jnp.dtype(c.dtype).itemsize / sizes[TENSOR]
    return arrays * (1 + accumulated + (sizes[FSDP] > 1)) + head


def _whole_keys(config: Config, sizes: Sizes, seq_len: int) -> float:
    """Return the bytes of keys and values gathered from other `sequence` shards."""
    c = config.model
    itemsize = jnp.dtype(c.dtype).itemsize
    entries = 2 * (c.kv_heads / sizes[TENSOR]) * c.head_size
    others = seq_len * (1 - 1 / sizes[SEQUENCE])
    return _sequences(config, sizes) * others * entries * itemsize


def _loss_chunk(config: Config, sizes: Sizes, seq_len: int) -> float:
    """Return the bytes of two float32 arrays like the logits of a chunk."""
    c = config.training
    positions = min(c.loss_chunk, seq_len) / sizes[SEQUENCE]
    vocabulary = config.model.vocab_size / sizes[TENSOR]
    return 2 * 4 * _sequences(config, sizes) * positions * vocabulary
