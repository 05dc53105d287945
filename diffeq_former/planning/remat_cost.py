"""Saved bytes and matrix-product FLOPs of one solver step under a remat policy.

Both are derived from the traced step, so they hold for every block, solver and policy.
Each has a part that grows with the number of tokens, and a part that grows with the
pairs of tokens (attention scores). The trace uses primes as batch size and sequence
length, to recognise these factors in the sizes of arrays.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from diffeq_former.config import ModelConfig
from diffeq_former.hardware import CPU
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.grid import default_grid
from diffeq_former.models.remat import POLICIES
from diffeq_former.models.step import Step
from diffeq_former.models.weight_sources import SOURCES
from diffeq_former.ode import binomial
from diffeq_former.planning.jaxpr_flops import dot_flops

_ROWS, _LENGTH = 509, 521  # primes


@dataclasses.dataclass(frozen=True)
class Amount:
    """Bytes or FLOPs of one solver step."""

    per_token: float
    per_pair: float

    def of(self, num_rows: float, seq_len: int, queries: float) -> float:
        """Return the total for sequences, of each of which a device has some queries.

        Every query attends to `seq_len` keys.
        """
        per_query = self.per_token + self.per_pair * seq_len
        return num_rows * queries * per_query


def share_of(c: ModelConfig, tensor: int) -> ModelConfig:
    """Return the config of one of `tensor` tensor-parallel shards of the model."""
    return dataclasses.replace(
        c,
        num_heads=c.num_heads // tensor,
        num_kv_heads=c.kv_heads // tensor,
        head_dim=c.head_size,
        d_ff=c.ff_dim // tensor,
        vocab_size=1,  # not used by a solver step
        attention_implementation="xla",  # materialises all scores in the trace
    )


@functools.cache
def kept(c: ModelConfig) -> Amount:
    """Return the bytes that policy `c.remat` saves of a step, including its input."""
    step, arguments = _step(c)
    saved = jax.eval_shape(lambda *a: jax.vjp(step, *a)[1], *arguments)
    return _amount((x.size, x.size * x.dtype.itemsize) for x in jax.tree.leaves(saved))


@functools.cache
def multiplied(c: ModelConfig) -> Amount:
    """Return the matrix-product FLOPs of a step: forward, recomputed and backward."""
    step, arguments = _step(c)

    def forward_and_backward(*arguments):
        x, pullback = jax.vjp(step, *arguments)
        return pullback(x)

    return _amount((n, n) for n in dot_flops(forward_and_backward, *arguments))


@functools.cache
def multiplied_forward(c: ModelConfig) -> Amount:
    """Return the matrix-product FLOPs of a step in the forward pass."""
    step, arguments = _step(c)
    return _amount((n, n) for n in dot_flops(step, *arguments))


def extra_forward_passes(c: ModelConfig) -> float:
    """Return how often the backward pass takes each step forward, beside `c.remat`."""
    if c.backward == "binomial":
        plan = binomial.schedule(c.num_layers, c.num_checkpoints)
        return 1 + plan.num_recomputed / c.num_layers
    return float(c.backward == "reversible")


def _amount(sizes_and_values) -> Amount:
    sums = {1: 0.0, 2: 0.0}
    for size, value in sizes_and_values:
        power = 2 if size % _LENGTH**2 == 0 else 1
        if size % (_ROWS * _LENGTH) == 0:
            sums[power] += value / (_ROWS * _LENGTH**power)
    return Amount(sums[1], sums[2])


def _step(c: ModelConfig):
    """Return a step as a function of state and weights, and their abstract values."""
    x_BLD = jax.ShapeDtypeStruct((_ROWS, _LENGTH, c.d_model), jnp.dtype(c.dtype))

    def apply(x_BLD, weights):
        positions_BL = jnp.zeros(x_BLD.shape[:2], jnp.int32)
        segments_BL = positions_BL if c.document_masking else None
        per_step, parameters = weights, None
        if c.generate_weights == "per_step":
            per_step, parameters = default_grid(c).times_TS[0], weights
        return Step(c, train=True, cached=False, hardware=CPU).apply(
            {},
            x_BLD,
            (per_step, None),
            (parameters, positions_BL, segments_BL, positions_BL[:, 0]),
            rngs={"dropout": jax.random.key(0)},
        )[0]

    if c.remat != "none":
        apply = jax.checkpoint(apply, policy=POLICIES[c.remat])
    return apply, (x_BLD, jax.eval_shape(lambda: _weights(c)))


def _weights(c: ModelConfig) -> dict:
    """Return the weights of a step, or the parameters from which it generates them."""
    one, specs = dataclasses.replace(c, num_layers=1), BLOCKS[c.block].weight_specs(c)
    parameters, _ = SOURCES[c.weights](one, specs).init_with_output(jax.random.key(0))
    if c.generate_weights == "per_step":
        return parameters
    times_S = default_grid(c).times_TS[0]
    return SOURCES[c.weights].tabulate(one, specs, parameters, times_S)
