"""The update of a bank from the factors of its gradient, without all of the gradient.

On a CPU a few of the F_e are updated at a time, which stay in its cache with their part
of the gradient. Other devices take a bank at once: they would lose more by many small
programs than the gradient of one bank takes of their memory.

E time embedding.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax import lax

from diffeq_former.config import OptimizerConfig
from diffeq_former.training.bank_gradient import BankGradient, rows
from diffeq_former.training.hypernetwork_params import bank_of, tree_of
from diffeq_former.training.tree_update import Updated, update_tree

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
      optimizer: for `banks.tree_of(name, bank)`, whose state has scalars and arrays
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
