"""One update of a tree of parameters, in place, or none."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from diffeq_former.training.bank_gradient import as_array, is_gradient
from diffeq_former.training.norms import squares


class Updated(NamedTuple):
    params: dict
    opt_state: optax.OptState
    update_squares: dict  # squared norms of the leaves of what was added
    param_squares: dict  # and of the parameters then


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
