"""Euclidean norms of trees like the parameters, from the squared norms of their leaves.

Gradients among them may be factored, see bank_gradient.py.
"""

import jax
import jax.numpy as jnp

from diffeq_former.training.bank_gradient import is_gradient, square
from diffeq_former.training.parameter_groups import GROUPS, group_of


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
