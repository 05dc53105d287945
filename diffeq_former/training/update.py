"""The update of all parameters, and the norms of what it is made from.

Banks are updated one by one from the factors of their gradients, all other parameters
together. On a CPU a few of a bank's F_e are updated at a time, which stay in its cache
with their part of the gradient. Other devices update a bank at once: many small
programs would cost them more than the gradient of one bank takes of their memory.

E time embedding.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from diffeq_former.config import OptimizerConfig
from diffeq_former.training.hypernetwork_params import (
    BankGradient,
    as_array,
    bank_of,
    is_gradient,
    join,
    rows,
    split,
    square,
    tree_of,
)
from diffeq_former.training.optimizer import GROUPS, group_of, make_optimizer


class OptState(NamedTuple):
    rest: optax.OptState
    banks: dict[str, optax.OptState]  # by the name of the unit


class Updated(NamedTuple):
    params: dict
    opt_state: optax.OptState
    update_squares: dict  # squared norms of the leaves of what was added
    param_squares: dict  # and of the parameters then


@dataclasses.dataclass(frozen=True)
class Update:
    """Clipping by the norm of all gradients, then the optimizer."""

    config: OptimizerConfig
    num_steps: int  # length of the schedule

    def init(self, params: dict) -> OptState:
        rest, banks = split(params)
        trees = {name: tree_of(name, bank) for name, bank in banks.items()}
        of_banks = {name: self._optimizer(t).init(t) for name, t in trees.items()}
        return OptState(self._optimizer(rest).init(rest), of_banks)

    def apply(
        self,
        gradients: dict,
        norm: jax.Array,
        opt_state: OptState,
        params: dict,
        good: jax.Array,
    ) -> Updated:
        """The next parameters; the same if not `good`. See `update_tree`.

        Args:
          gradients: like the parameters; of a bank perhaps a BankGradient.
          norm: of all of them: they are scaled down to `clip_norm`.
          opt_state: what `init` made.
          params: all parameters.
          good: whether to update.
        """
        clip = self.config.clip_norm
        scale = jnp.minimum(1.0, clip / norm) if clip else jnp.float32(1.0)
        (rest, banks), (of_rest, of_banks) = split(params), split(gradients)
        done = update_tree(
            self._optimizer(rest), of_rest, opt_state.rest, rest, scale, good
        )
        each = {
            name: update_bank(
                self._optimizer(tree_of(name, bank)),
                name,
                of_banks[name],
                opt_state.banks[name],
                bank,
                scale,
                good,
                rows_at_once(self.config, bank.shape),
            )
            for name, bank in banks.items()
        }

        def joined(field: str) -> dict:
            found = {name: getattr(one, field) for name, one in each.items()}
            return join(getattr(done, field), found)

        return Updated(
            joined("params"),
            OptState(done.opt_state, {k: one.opt_state for k, one in each.items()}),
            joined("update_squares"),
            joined("param_squares"),
        )

    def _optimizer(self, params: dict) -> optax.GradientTransformation:
        return make_optimizer(self.config, self.num_steps, params)


def update_tree(
    optimizer: optax.GradientTransformation,
    gradients: dict,
    opt_state: optax.OptState,
    params: dict,
    scale: jax.Array,
    good: jax.Array,
) -> Updated:
    """The next parameters; the same if not `good`.

    Args:
      optimizer: for these parameters.
      gradients: like the parameters, of a bank perhaps as factors, which are multiplied
        out here; times `scale`.
      opt_state: of the optimizer.
      params: arrays, all of which may be overwritten: both branches of a `cond` end in
        its operands' memory, where the two sides of a `where` would be copied.
      scale: scalar.
      good: whether to update; where the compiler knows it, copies are made.
    """

    def advance(gradients, opt_state, params):
        scaled = jax.tree.map(
            lambda g: scale * as_array(g), gradients, is_leaf=is_gradient
        )
        updates, opt_state = optimizer.update(scaled, opt_state, params)
        params = optax.apply_updates(params, updates)
        return Updated(params, opt_state, squares(updates), squares(params))

    def stay(gradients, opt_state, params):
        del gradients
        nothing = jax.tree.map(lambda _: jnp.zeros(()), params)
        return Updated(params, opt_state, nothing, squares(params))

    return lax.cond(good, advance, stay, gradients, opt_state, params)


CPU_BLOCK = 2**20  # entries that are updated at a time


def rows_at_once(c: OptimizerConfig, shape: tuple[int, ...]) -> int:
    """How many of a bank's F_e are updated at a time: a divisor of E."""
    E, *kernel = shape
    if c.factored_bank or jax.default_backend() != "cpu":
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
    good: jax.Array,
    count: int,
) -> Updated:
    """As `update_tree`, for the bank [E, *kernel] of a unit; all fields without a tree.

    Args:
      optimizer: for `tree_of(name, bank)`, whose state has scalars and arrays
        like the bank; of the latter, rows are independent of each other if `count` < E.
      name: of the unit.
      gradient: of the bank.
      opt_state: of the optimizer.
      bank: may be overwritten.
      scale: see there.
      good: see there.
      count: how many of its rows are updated at a time.
    """
    before, structure = jax.tree.flatten(opt_state)

    def update_rows(start, bank, leaves):
        params, opt_state, *sums = update_tree(
            optimizer,
            tree_of(name, rows(gradient, start, count)),
            structure.unflatten(leaves),
            tree_of(name, bank),
            scale,
            good,
        )
        sums = [bank_of(name, tree) for tree in sums]
        return bank_of(name, params), jax.tree.leaves(opt_state), sums

    if count == len(bank):
        bank, leaves, sums = update_rows(0, bank, before)
    else:
        bank, leaves, sums = _by_blocks(update_rows, bank, before, count)
    return Updated(bank, structure.unflatten(leaves), *sums)


def _by_blocks(update_rows: Callable, bank: jax.Array, before: list, count: int):
    """What `update_rows` makes of all rows, from `count` of them at a time.

    `before` are the leaves of the optimizer's state: arrays like the bank, and counts.
    """

    def cut(x, start):
        return lax.dynamic_slice_in_dim(x, start, count)

    def put(x, some, start):
        return lax.dynamic_update_slice_in_dim(x, some, start, 0)

    def update_block(k, carry):
        bank, leaves, sums = carry
        start = k * count
        # Counts are those from before the step, for every block.
        mine = [
            cut(x, start) if x.ndim else old
            for x, old in zip(leaves, before, strict=True)
        ]
        new, mine, more = update_rows(start, cut(bank, start), mine)
        leaves = [
            put(x, some, start) if x.ndim else some
            for x, some in zip(leaves, mine, strict=True)
        ]
        return put(bank, new, start), leaves, jax.tree.map(jnp.add, sums, more)

    nothing = [jnp.zeros(()), jnp.zeros(())]
    return lax.fori_loop(0, len(bank) // count, update_block, (bank, before, nothing))


def squares(tree) -> dict:
    """The squared norm of every leaf."""
    return jax.tree.map(square, tree, is_leaf=is_gradient)


def norms(name: str, squares: dict) -> dict[str, jax.Array]:
    """The norm of all leaves: `name`, and of those of each group: `name/group`."""
    leaves, groups = jax.tree.leaves(squares), jax.tree.leaves(group_of(squares))
    named = {name: jnp.sqrt(sum(leaves))}
    for group in GROUPS:
        members = [x for x, g in zip(leaves, groups, strict=True) if g == group]
        if members:
            named[f"{name}/{group}"] = jnp.sqrt(sum(members))
    return named
