"""The update of all parameters, and norms of gradients, updates and parameters.

Banks are updated one by one from the factors of their gradients, all other parameters
together. On a CPU, a bank is updated in blocks of a few F_e, so that they and their
gradient stay in the cache. Other devices update a bank at once, as many small kernels
would cost more than the memory for the gradient of one bank.

Shape suffix: E time embedding.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from diffeq_former.config import ModelConfig, OptimizerConfig
from diffeq_former.hardware import Hardware
from diffeq_former.training.bank_gradient import (
    BankGradient,
    as_array,
    is_gradient,
    rows,
    square,
)
from diffeq_former.training.muon import init_kernels, orthogonalise
from diffeq_former.training.optimizer import GROUPS, group_of, make_optimizer
from diffeq_former.training.parts import Parts, bank_tree, get_bank

# What an update does. The norms of the new parameters and of their changes, for which
# all of them are read once more, are computed only if they are wanted.
SKIP, UPDATE, UPDATE_AND_MEASURE = range(3)


class OptState(NamedTuple):
    """The optimizer's states: one for each bank, and one for everything else."""

    rest: optax.OptState
    banks: dict[str, optax.OptState]  # by the name of the layer
    kernels: optax.OptState  # of dL/dW(t_k), with weight_space_muon


class Updated(NamedTuple):
    """The result of an update: of all parameters, of some, or of one bank."""

    params: Any
    opt_state: optax.OptState
    # Squared norms of each leaf's update, and of the leaf after it; 0 after UPDATE.
    update_squares: Any
    param_squares: Any


@dataclasses.dataclass(frozen=True)
class Update:
    """Clipping by the global norm of the gradients, then the optimizer."""

    config: OptimizerConfig
    num_steps: int  # length of the schedule
    model: ModelConfig
    other_times: bool = False  # steps are not those of the model's own grid

    @property
    def _optimizer(self) -> optax.GradientTransformation:
        return make_optimizer(self.config, self.num_steps, self.model)

    def init(self, params: Parts) -> OptState:
        """Return the optimizer's state before the first update."""
        optimizer = self._optimizer
        banks = {
            name: optimizer.init(bank_tree(name, bank))
            for name, bank in params.banks.items()
        }
        kernels = init_kernels(self.config, self.model, params.banks)
        return OptState(optimizer.init(params.rest), banks, kernels)

    def apply(
        self,
        gradients: Parts,
        norm: jax.Array,
        opt_state: OptState,
        params: Parts,
        action: jax.Array,
        hardware: Hardware,
    ) -> Updated:
        """Return the updated parameters. See `update_tree`.

        Args:
          gradients: An array for each trainable parameter; a bank's may be a
            BankGradient.
          norm: The norm of all gradients, which are scaled down to `clip_norm`.
          opt_state: The state that `init` or the last `apply` returned.
          params: The parameters.
          action: SKIP, UPDATE or UPDATE_AND_MEASURE.
          hardware: What the program is compiled for.
        """
        clip, optimizer = self.config.clip_norm, self._optimizer
        scale = jnp.minimum(1.0, clip / norm) if clip else jnp.float32(1.0)
        if kernels := opt_state.kernels:
            at = params if self.other_times else None
            given = (self.config, self.model, gradients, kernels, scale, at)
            gradients, kernels = lax.cond(
                action != SKIP,
                lambda: orthogonalise(*given),
                lambda: (_zeros_of(lambda: orthogonalise(*given)[0]), kernels),
            )
            scale = jnp.float32(1.0)
        rest = update_tree(
            optimizer, gradients.rest, opt_state.rest, params.rest, scale, action
        )
        banks = {
            name: update_bank(
                optimizer,
                name,
                gradients.banks[name],
                opt_state.banks[name],
                bank,
                scale,
                action,
                rows_at_once(self.config, bank.shape, hardware),
            )
            for name, bank in params.banks.items()
        }

        def of_banks(field: str) -> dict:
            return {name: getattr(bank, field) for name, bank in banks.items()}

        def of_trainable(field: str) -> Parts:
            return Parts(getattr(rest, field), of_banks(field), frozen={})

        return Updated(
            of_trainable("params").replace(frozen=params.frozen),
            OptState(rest.opt_state, of_banks("opt_state"), kernels),
            of_trainable("update_squares"),
            of_trainable("param_squares"),
        )


def _zeros_of(function: Callable[[], Any]) -> Any:
    """Return zeros in place of the arrays that the function would return."""
    return optax.tree.zeros_like(jax.eval_shape(function))


def update_tree(
    optimizer: optax.GradientTransformation,
    gradients: dict,
    opt_state: optax.OptState,
    params: dict,
    scale: jax.Array,
    action: jax.Array,
) -> Updated:
    """Return the updated parameters.

    The choice is a `switch`, whose branches can all write to the memory of its
    operands; a `where` would copy both sides. Copies are also made if `action` is known
    when the function is compiled.

    Args:
      optimizer: The optimizer of these parameters.
      gradients: A tree like the parameters; factored gradients are materialised here.
      opt_state: The optimizer's state.
      params: The parameters; their memory may be overwritten.
      scale: A scalar by which the gradients are multiplied.
      action: SKIP, UPDATE or UPDATE_AND_MEASURE.
    """
    zeros = jax.tree.map(lambda _: jnp.zeros(()), params)

    def skip(gradients, opt_state, params):
        del gradients
        return Updated(params, opt_state, zeros, squares(params))

    def measured(gradients, opt_state, params):
        scaled = jax.tree.map(
            lambda g: scale * as_array(g), gradients, is_leaf=is_gradient
        )
        updates, opt_state = optimizer.update(scaled, opt_state, params)
        params = optax.apply_updates(params, updates)
        return Updated(params, opt_state, squares(updates), squares(params))

    def update(*operands):
        return measured(*operands)._replace(update_squares=zeros, param_squares=zeros)

    return lax.switch(action, (skip, update, measured), gradients, opt_state, params)


CPU_BLOCK = 2**20  # array entries that are updated at a time


def rows_at_once(c: OptimizerConfig, shape: tuple[int, ...], hardware: Hardware) -> int:
    """Return how many F_e of a bank are updated at a time: a divisor of E."""
    E, *kernel = shape
    if c.factored_bank or c.name == "muon" or hardware.platform != "cpu":
        return E
    most = max(1, CPU_BLOCK // math.prod(kernel))
    return max(n for n in range(1, E + 1) if E % n == 0 and n <= most)


def update_bank(
    optimizer: optax.GradientTransformation,
    name: str,
    gradient: jax.Array | BankGradient,
    opt_state: optax.OptState,
    bank: jax.Array,
    scale: jax.Array,
    action: jax.Array,
    count: int,
) -> Updated:
    """Update one bank [E, *kernel], as `update_tree` does; fields are bare arrays.

    Args:
      optimizer: The optimizer of `bank_tree(name, bank)`. Its state consists of scalars
        and arrays like the bank, whose rows must be independent if `count` < E.
      name: The name of the bank's layer.
      gradient: The gradient of the bank.
      opt_state: The optimizer's state.
      bank: The bank; its memory may be overwritten.
      scale: A scalar by which the gradient is multiplied.
      action: SKIP, UPDATE or UPDATE_AND_MEASURE.
      count: How many F_e are updated at a time; a divisor of E.
    """
    before, structure = jax.tree.flatten(opt_state)

    def update_rows(start, bank, leaves):
        params, opt_state, *sums = update_tree(
            optimizer,
            bank_tree(name, rows(gradient, start, count)),
            structure.unflatten(leaves),
            bank_tree(name, bank),
            scale,
            action,
        )
        sums = [get_bank(name, tree) for tree in sums]
        return get_bank(name, params), jax.tree.leaves(opt_state), sums

    if count == len(bank):
        bank, leaves, sums = update_rows(0, bank, before)
    else:
        bank, leaves, sums = _by_blocks(update_rows, bank, before, count)
    return Updated(bank, structure.unflatten(leaves), *sums)


def _by_blocks(update_rows: Callable, bank: jax.Array, before: list, count: int):
    """Apply `update_rows` to blocks of `count` rows; return what it returns for all.

    `before` holds the leaves of the optimizer's state: arrays like the bank, and step
    counts and the like.
    """

    def read(x, start):
        return lax.dynamic_slice_in_dim(x, start, count)

    def write(x, block, start):
        return lax.dynamic_update_slice_in_dim(x, block, start, 0)

    def update_block(k, carry):
        bank, leaves, sums = carry
        start = k * count
        # Every block starts from the step counts before the update.
        block = [
            read(x, start) if x.ndim == bank.ndim else old
            for x, old in zip(leaves, before, strict=True)
        ]
        new, block, more = update_rows(start, read(bank, start), block)
        leaves = [
            write(x, part, start) if x.ndim == bank.ndim else part
            for x, part in zip(leaves, block, strict=True)
        ]
        return write(bank, new, start), leaves, jax.tree.map(jnp.add, sums, more)

    zeros = [jnp.zeros(()), jnp.zeros(())]
    return lax.fori_loop(0, len(bank) // count, update_block, (bank, before, zeros))


def squares(tree):
    """Return the squared norm of every leaf; factored gradients are leaves."""
    return jax.tree.map(square, tree, is_leaf=is_gradient)


def norms(name: str, squares: Parts) -> dict[str, jax.Array]:
    """Return the norm of all leaves, `name`, and of each group, `name/GROUP`.

    Args:
      name: The prefix of the names of the metrics.
      squares: The squared norm of every leaf.
    """
    tree = squares.merge()
    leaves, groups = jax.tree.leaves(tree), jax.tree.leaves(group_of(tree))
    named = {name: jnp.sqrt(sum(leaves))}
    for group in GROUPS:
        members = [x for x, g in zip(leaves, groups, strict=True) if g == group]
        if members:
            named[f"{name}/{group}"] = jnp.sqrt(sum(members))
    return named
