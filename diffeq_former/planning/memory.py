"""Bytes that one device needs for a step of training, in closed form.

The state (parameters, optimizer) and the batch are there all the time. On top come,
one after the other, what the backward pass needs and what the update needs: gradients
with respect to the banks exist only when all activations are gone. The larger counts.
"""

import dataclasses

import jax.numpy as jnp

from diffeq_former.config import Config, ModelConfig
from diffeq_former.config.schema import SAVE_WEIGHTS
from diffeq_former.distributed.sharding_rules import (
    FSDP,
    SEQUENCE,
    TENSOR,
    num_row_shares,
)
from diffeq_former.planning import shapes
from diffeq_former.planning.remat_cost import kept, share_of
from diffeq_former.planning.shapes import Sizes, micro_batches


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device."""

    parameters: float
    optimizer: float
    gradients: float  # like the parameters, but of the banks only one at a time
    table: float  # generated weights
    table_gradients: float  # with respect to the table
    ends: float  # whole embeddings and unembedding, and their gradients
    saved_states: float  # what the policy keeps between the steps of the depth
    one_step: float  # what is computed again of a step, to go back through it
    loss_chunk: float  # logits, their exponentials and their gradient
    batch: float

    @property
    def activations(self) -> float:
        """The loss is done with before the first step back."""
        return self.saved_states + max(self.one_step, self.loss_chunk)

    @property
    def backward(self) -> float:
        return self.table + self.table_gradients + self.ends + self.activations

    @property
    def update(self) -> float:
        return self.gradients + self.table + self.table_gradients

    @property
    def total(self) -> float:
        state = self.parameters + self.optimizer + self.batch
        return state + max(self.backward, self.update)

    @property
    def fullest(self) -> dict[str, float]:
        """What is there when most is, from the largest; sums to `total`."""
        names = ["parameters", "optimizer", "batch", "table", "table_gradients"]
        if self.backward > self.update:
            names += ["ends", "saved_states"]
            names.append(max("one_step", "loss_chunk", key=lambda n: getattr(self, n)))
        else:
            names.append("gradients")
        parts = {name: getattr(self, name) for name in names}
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
    fused: bool,
) -> Memory:
    """What a device of the mesh needs.

    Args:
      config: all settings.
      sizes: the mesh.
      parameters: bytes of a device's share.
      optimizer: the same of the optimizer's state.
      seq_len: tokens of a row.
      fused: whether the kernel of attention never holds a matrix of scores.
    """
    one_step = kept_bytes(config, sizes, seq_len, fused, "none")
    per_step = config.model.generate_weights == "per_step"
    accumulated = micro_batches(config, sizes) > 1
    return Memory(
        parameters=parameters,
        optimizer=optimizer,
        gradients=parameters - _factored(config, sizes),
        table=_table(config.model, sizes),
        table_gradients=parameters * (1 + accumulated)
        if per_step
        else _table_gradients(config, sizes),
        ends=_ends(config, sizes),
        saved_states=config.model.num_layers
        * kept_bytes(config, sizes, seq_len, fused, config.model.remat),
        one_step=one_step * (config.model.remat != "none")
        + _whole_keys(config, sizes, seq_len),
        loss_chunk=_loss_chunk(config, sizes, seq_len),
        batch=2 * 4 * config.training.batch_size * seq_len / num_row_shares(sizes),
    )


def kept_bytes(
    config: Config, sizes: Sizes, seq_len: int, fused: bool, remat: str
) -> float:
    """What a policy keeps of one step, for a device's part of a micro-batch."""
    share = share_of(dataclasses.replace(config.model, remat=remat), sizes[TENSOR])
    amount = kept(share)
    if fused:
        amount = dataclasses.replace(amount, per_pair=0.0)
    return amount.of(_rows(config, sizes), seq_len, seq_len / sizes[SEQUENCE])


def _rows(config: Config, sizes: Sizes) -> float:
    """Of a micro-batch, on one device."""
    shares = micro_batches(config, sizes) * num_row_shares(sizes)
    return config.training.batch_size / shares


def _factored(config: Config, sizes: Sizes) -> float:
    """Banks' gradients that stay factors, while that of the largest is multiplied out.

    Steps that generate their own weights have the gradients of all banks.
    """
    if config.model.generate_weights == "per_step":
        return 0.0
    banks = [array.num_bytes(sizes) for array in shapes.banks(config.model)]
    return sum(banks) - max(banks, default=0.0)


def _table(c: ModelConfig, sizes: Sizes) -> float:
    """Generated weights, cut as stored ones."""
    saved = c.remat in ("none", *SAVE_WEIGHTS) and c.generate_weights == "per_step"
    copies = c.num_layers if saved else 1
    return copies * sum(array.num_bytes(sizes) for array in shapes.table(c))


def _table_gradients(config: Config, sizes: Sizes) -> float:
    """In the compute dtype, of weights that `fsdp` does not cut: each row share's own.

    With accumulation their sum in float32 too.
    """
    accumulated = micro_batches(config, sizes) > 1
    whole = [
        (array.num_bytes(sizes, {TENSOR}), array.itemsize)
        for array in shapes.table(config.model)
    ]
    return sum(size * (1 + accumulated * 4 / itemsize) for size, itemsize in whole)


def _ends(config: Config, sizes: Sizes) -> float:
    """Gathered embeddings and unembedding; gradients, with accumulation also summed."""
    accumulated = micro_batches(config, sizes) > 1
    arrays = [*shapes.lookups(config.model), shapes.unembedding(config.model)]
    gradients = sum(a.num_bytes(sizes, {TENSOR}) for a in arrays) * (1 + accumulated)
    gathered = [a.num_bytes(sizes, {TENSOR}) for a in arrays] if sizes[FSDP] > 1 else []
    return gradients + sum(gathered)


def _whole_keys(config: Config, sizes: Sizes, seq_len: int) -> float:
    """Keys and values that are gathered along `sequence`, beyond a device's own."""
    c = config.model
    itemsize = jnp.dtype(c.dtype).itemsize
    entries = 2 * (c.kv_heads / sizes[TENSOR]) * c.head_dim
    others = seq_len * (1 - 1 / sizes[SEQUENCE])
    return _rows(config, sizes) * others * entries * itemsize


def _loss_chunk(config: Config, sizes: Sizes, seq_len: int) -> float:
    """Three float32 arrays like the logits of a chunk."""
    c = config.training
    positions = min(c.loss_chunk, seq_len) / sizes[SEQUENCE]
    vocabulary = config.model.vocab_size / sizes[TENSOR]
    return 3 * 4 * _rows(config, sizes) * positions * vocabulary
