"""What one step of the depth keeps for its backward pass, and what it multiplies.

Both are read from the step's trace, so they hold for every block, solver and policy.
Each is a sum of parts that grow with the tokens, and with the pairs of tokens (the
scores of attention): the trace has so many rows and positions that no other size is a
multiple of them.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from diffeq_former.config import ModelConfig
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.remat import POLICIES
from diffeq_former.models.step import Step
from diffeq_former.models.weight_sources import SOURCES
from diffeq_former.ode.grid import stage_times
from diffeq_former.ode.solvers import SOLVERS
from diffeq_former.planning.jaxpr_flops import dot_flops

_ROWS, _LENGTH = 509, 521  # primes


@dataclasses.dataclass(frozen=True)
class Amount:
    """Bytes or flops of one step over the depth."""

    per_token: float
    per_pair: float

    def of(self, num_rows: float, seq_len: int, queries: float) -> float:
        """For rows of a length, of which a device has so many queries each."""
        per_query = self.per_token + self.per_pair * seq_len
        return num_rows * queries * per_query


@dataclasses.dataclass(frozen=True)
class _Share(ModelConfig):
    """A device's share of a model whose heads and feed-forward are cut."""

    head_size: int = 0

    @property
    def head_dim(self) -> int:
        return self.head_size


def share_of(c: ModelConfig, tensor: int) -> ModelConfig:
    """The part of the model that a device of `tensor` of them computes."""
    return _Share(
        **{field.name: getattr(c, field.name) for field in dataclasses.fields(c)}
        | {
            "num_heads": c.num_heads // tensor,
            "num_kv_heads": c.kv_heads // tensor,
            "d_ff": c.ff_dim // tensor,
            "vocab_size": 1,  # no step sees it
            "attention_implementation": "xla",  # its trace has all scores
        },
        head_size=c.head_dim,
    )


@functools.cache
def kept(c: ModelConfig) -> Amount:
    """Bytes that the policy `c.remat` saves of a step, its input included."""
    step, arguments = _step(c)
    saved = jax.eval_shape(lambda *a: jax.vjp(step, *a)[1], *arguments)
    return _amount((x.size, x.size * x.dtype.itemsize) for x in jax.tree.leaves(saved))


@functools.cache
def multiplied(c: ModelConfig) -> Amount:
    """Flops of a step's products: forward, again as `c.remat` wants, and back."""
    step, arguments = _step(c)

    def forward_and_back(*arguments):
        x, pull_back = jax.vjp(step, *arguments)
        return pull_back(x)

    return _amount((n, n) for n in dot_flops(forward_and_back, *arguments))


def _amount(sizes_and_values) -> Amount:
    sums = {1: 0.0, 2: 0.0}
    for size, value in sizes_and_values:
        power = 2 if size % _LENGTH**2 == 0 else 1
        if size % (_ROWS * _LENGTH) == 0:
            sums[power] += value / (_ROWS * _LENGTH**power)
    return Amount(sums[1], sums[2])


def _step(c: ModelConfig):
    """One step as a function of its state and weights, and their shapes."""
    x_BLD = jax.ShapeDtypeStruct((_ROWS, _LENGTH, c.d_model), jnp.dtype(c.dtype))

    def apply(x_BLD, weights):
        positions_BL = jnp.zeros(x_BLD.shape[:2], jnp.int32)
        segments_BL = positions_BL if c.document_masking else None
        per_step, parameters = weights, None
        if c.generate_weights == "per_step":
            per_step, parameters = _stage_times(c), weights
        return Step(c, train=True, cached=False).apply(
            {},
            x_BLD,
            (per_step, None),
            (parameters, positions_BL, segments_BL),
            rngs={"dropout": jax.random.key(0)},
        )[0]

    if c.remat != "none":
        apply = jax.checkpoint(apply, policy=POLICIES[c.remat])
    return apply, (x_BLD, jax.eval_shape(lambda: _weights(c)))


def _weights(c: ModelConfig) -> dict:
    """What a step is given: its weights, or the parameters that generate them."""
    one, units = dataclasses.replace(c, num_layers=1), BLOCKS[c.block].units(c)
    parameters, _ = SOURCES[c.weights](one, units).init_with_output(jax.random.key(0))
    if c.generate_weights == "per_step":
        return parameters
    return SOURCES[c.weights].tabulate(one, units, parameters, _stage_times(c))


def _stage_times(c: ModelConfig) -> jax.Array:
    return stage_times(c.num_layers, SOLVERS[c.solver].nodes)[0]
