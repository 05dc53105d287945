"""Gradients of coupled steps in float64. Their order: in test_solvers.py."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from diffeq_former.ode import reversible
from diffeq_former.ode.reversible import Coupled

T, D = 6, 4


def increment(reverse, x, k, weights, constants):
    sign = -1 if reverse else 1
    return sign * constants[k] * jnp.tanh(weights @ x + k / T)


def observe(y, y_after, k, constants):
    return jnp.square(y_after - y).sum() / constants[k]


METHOD = reversible.Method(increment, observe)


def objective(integrate, x, weights_TDD, lengths_T):
    state, observed_T = integrate(METHOD, Coupled(x, x), weights_TDD, lengths_T)
    return jnp.sin(state.y).sum() + state.z[0] + jnp.arange(T) @ observed_T


def test_gradients_are_those_of_autodiff():
    """With respect to states, weights and what is observed, in float64."""
    with jax.enable_x64(True):
        random = np.random.default_rng(0)
        x, weights = (jnp.asarray(random.normal(size=n)) for n in (D, (T, D, D)))
        lengths = jnp.asarray(random.uniform(0.1, 1.0, T))
        stored = reversible.integrate.__wrapped__
        found, expected = (
            jax.grad(functools.partial(objective, integrate), argnums=(0, 1))(
                x, weights, lengths
            )
            for integrate in (reversible.integrate, stored)
        )
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-13)


def test_the_backward_pass_stores_no_states():
    run = functools.partial(objective, reversible.integrate)
    arguments = jnp.ones(D), jnp.ones((T, D, D)), jnp.ones(T)
    saved = {x.shape for x in jax.tree.leaves(jax.vjp(run, *arguments)[1])}
    assert (T, D, D) in saved and (T, D) not in saved
