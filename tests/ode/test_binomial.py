"""Binomial checkpointing: the fewest steps, by a closed form, and gradients."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeq_former.ode import binomial


def simulated(num_steps: int, num_checkpoints: int) -> int:
    """Follow a schedule with states that are numbers, and count steps taken again."""
    plan = binomial.schedule(num_steps, num_checkpoints)
    slots, taken = {0: 0}, 0

    def store(k, stores_S):
        for slot in np.flatnonzero(stores_S == k):
            slots[int(slot)] = k

    for k in range(num_steps):
        store(k, plan.forward_S)
    for k in reversed(range(num_steps)):
        at = slots[int(plan.slot_T[k])]
        assert at == plan.start_T[k]
        while at < k:
            store(at, plan.backward_TS[k])
            at, taken = at + 1, taken + 1
    assert set(slots) <= set(range(num_checkpoints + 1)) and slots[0] == 0
    assert taken == plan.num_recomputed
    return taken


@functools.cache
def least_again(n: int, s: int) -> int:
    """Steps that n steps need in reverse, by Griewank and Walther (2000, theorem).

    The state before the first is stored, and s others can be: r n - binom(s + r + 1,
    s + 2) for the smallest r with n <= binom(s + 1 + r, r).
    """
    r = next(r for r in itertools.count() if n <= math.comb(s + 1 + r, r))
    return r * n - math.comb(s + 1 + r, s + 2)


def least(n: int, s: int) -> int:
    """The same if the forward pass stores on its way, over all positions."""
    positions = itertools.combinations(range(1, n), min(s, n - 1))
    return min(
        sum(
            least_again(end - start, s - i)
            for i, (start, end) in enumerate(itertools.pairwise((0, *chosen, n)))
        )
        for chosen in positions
    )


@pytest.mark.parametrize("num_checkpoints", [1, 2, 3, 5])
@pytest.mark.parametrize("num_steps", [2, 3, 7, 12])
def test_the_schedule_takes_the_fewest_steps_again(num_steps, num_checkpoints):
    assert simulated(num_steps, num_checkpoints) == least(num_steps, num_checkpoints)


T, D = 7, 4


def step(x, k, weights, constants):
    after = x + constants[k] * jnp.tanh(weights @ x + k / T)
    return after, jnp.square(after - x).sum()


def objective(integrate, x, weights_TDD, lengths_T):
    x, observed_T = integrate(x, weights_TDD, lengths_T)
    return jnp.sin(x).sum() + jnp.arange(T) @ observed_T


def stored(x, weights_TDD, lengths_T):
    def body(x, numbered):
        return step(x, *numbered, lengths_T)

    return jax.lax.scan(body, x, (jnp.arange(T), weights_TDD))


@pytest.mark.parametrize("num_checkpoints", [1, 2, T - 1])
def test_gradients_are_those_of_autodiff(num_checkpoints):
    with jax.enable_x64(True):
        random = np.random.default_rng(0)
        x, weights = (jnp.asarray(random.normal(size=n)) for n in (D, (T, D, D)))
        lengths = jnp.asarray(random.uniform(0.1, 1.0, T))
        ours = functools.partial(binomial.integrate, step, num_checkpoints)
        found, expected = (
            jax.grad(functools.partial(objective, integrate), argnums=(0, 1))(
                x, weights, lengths
            )
            for integrate in (ours, stored)
        )
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_only_the_checkpoints_are_stored():
    ours = functools.partial(binomial.integrate, step, 2)
    run = functools.partial(objective, ours)
    arguments = jnp.ones(D), jnp.ones((T, D, D)), jnp.ones(T)
    saved = {x.shape for x in jax.tree.leaves(jax.vjp(run, *arguments)[1])}
    assert (3, D) in saved and (T, D) not in saved
