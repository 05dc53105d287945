"""Reversible steps, whose backward pass reconstructs states instead of storing them.

McCallum and Foster (2024, arXiv:2410.11648) couple two states, which both start at x:

    y' = c y + (1 - c) z + Psi_h(z)
    z' = z - Psi_-h(y')

Psi_h(x) is the increment of any one-step method in a step of length h. The coupled
method has the order of that method, takes two of its steps, and has a closed inverse:

    z = z' + Psi_-h(y')
    y = (y' - (1 - c) z - Psi_h(z)) / c
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

# c < 1 makes the method stable for decaying modes. Rounding errors of a reconstruction
# grow by 1 / c in each step.
COUPLING = 0.999

Tree = Any


class Coupled(NamedTuple):
    """The two coupled states, in float32; y is the solution."""

    y: jax.Array
    z: jax.Array


class Method(NamedTuple):
    """The functions that a step consists of; k is its number."""

    # increment(reverse, x, k, weights, constants) -> Psi_h(x) or, reversed, Psi_-h(x)
    increment: Callable[..., jax.Array]
    # observe(y, y', k, constants) -> values of each step that are returned
    observe: Callable[..., Tree]


def step(
    forward: Callable[[jax.Array], jax.Array],
    backward: Callable[[jax.Array], jax.Array],
    state: Coupled,
) -> Coupled:
    """Return the states after a step, given Psi_h and Psi_-h."""
    y, z = state
    y = COUPLING * y + (1 - COUPLING) * z + forward(z)
    return Coupled(y, z - backward(y))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def integrate(
    method: Method, state: Coupled, weights_T: Tree, constants: Tree
) -> tuple[Coupled, Tree]:
    """Take T steps; the backward pass needs the memory of one, for any T.

    Args:
      method: The functions of a step.
      state: The initial states.
      weights_T: What the increments are differentiated by beside the state, with a
        leading axis of steps.
      constants: Anything that has no gradient.

    Returns:
      The states after the last step, and what `observe` returns, with a leading axis of
      steps.
    """

    def take_step(state: Coupled, numbered):
        k, weights = numbered
        increments = (
            functools.partial(
                method.increment, reverse, k=k, weights=weights, constants=constants
            )
            for reverse in (False, True)
        )
        new = step(*increments, state)
        return new, method.observe(state.y, new.y, k, constants)

    return jax.lax.scan(take_step, state, _numbered(weights_T))


def _numbered(weights_T: Tree) -> tuple[jax.Array, Tree]:
    return jnp.arange(len(jax.tree.leaves(weights_T)[0])), weights_T


def _forward(method: Method, state: Coupled, weights_T, constants):
    state, observed_T = integrate(method, state, weights_T, constants)
    return (state, observed_T), (state, weights_T, constants)


def _backward(method: Method, saved, cotangents):
    state, weights_T, constants = saved
    dstate, dobserved_T = cotangents

    def undo_step(carry, numbered):
        (y_after, z_after), (dy, dz) = carry
        (k, weights), dobserved = numbered

        def increment(reverse: bool, x: jax.Array):
            return jax.vjp(
                lambda x, w: method.increment(reverse, x, k, w, constants), x, weights
            )

        backward, pull_back_backward = increment(True, y_after)
        z = z_after + backward
        forward, pull_back_forward = increment(False, z)
        y = (y_after - (1 - COUPLING) * z - forward) / COUPLING
        pull_back_observed = jax.vjp(
            lambda y, y_after: method.observe(y, y_after, k, constants), y, y_after
        )[1]
        dy_observed, dy_after_observed = pull_back_observed(dobserved)
        dy_backward, dweights_backward = pull_back_backward(-dz)
        dy = dy + dy_backward + dy_after_observed
        dz_forward, dweights_forward = pull_back_forward(dy)
        dz = dz + (1 - COUPLING) * dy + dz_forward
        dy = COUPLING * dy + dy_observed
        dweights = jax.tree.map(jnp.add, dweights_backward, dweights_forward)
        return (Coupled(y, z), Coupled(dy, dz)), dweights

    steps = (_numbered(weights_T), dobserved_T)
    (_, dstate), dweights_T = jax.lax.scan(
        undo_step, (state, dstate), steps, reverse=True
    )
    return dstate, dweights_T, None


integrate.defvjp(_forward, _backward)
