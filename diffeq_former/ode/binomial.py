"""Binomial checkpointing: a fixed number of stored states, the fewest steps recomputed.

Griewank and Walther (2000, Algorithm 799: Revolve). Steps are differentiated from the
last to the first. For each, the nearest stored state before it is loaded; on the way
from there, states are stored in the slots that have become free. Then the pullback of
binom(S + 1 + r, r) steps, with S states stored beside the first, takes no step forward
more than r times.

The number of steps is known beforehand, so the schedule is made while tracing (offline
checkpointing).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Tree = Any
Step = Callable[..., tuple[jax.Array, Tree]]


class Schedule(NamedTuple):
    """Slots 0 to S that states are stored in and loaded from, for T steps.

    The state at k is that before step k. Slot 0 is for the first state. In a row of
    slots, -1 stands for one in which nothing is stored.
    """

    forward_S: np.ndarray  # state that the forward pass stores in each slot
    slot_T: np.ndarray  # slot that is loaded to differentiate step k
    start_T: np.ndarray  # state that is in it
    backward_TS: np.ndarray  # states that are stored on the way from there to step k

    @property
    def num_recomputed(self) -> int:
        """Number of steps that the backward pass takes forward."""
        return int((np.arange(len(self.start_T)) - self.start_T).sum())


@functools.cache
def schedule(num_steps: int, num_checkpoints: int) -> Schedule:
    """Return the schedule that takes the fewest steps forward in the backward pass.

    Args:
      num_steps: Number of steps T.
      num_checkpoints: Number of states S that are stored beside the first.
    """
    T, S = num_steps, num_checkpoints
    first_splits, splits = _best_splits(T, S)
    stored = [0]  # the state in each slot
    made = Schedule(
        forward_S=np.full(S + 1, -1),
        slot_T=np.zeros(T, int),
        start_T=np.zeros(T, int),
        backward_TS=np.full((T, S + 1), -1),
    )

    def store_on_the_way(end: int, splits: np.ndarray, stores_S: np.ndarray) -> None:
        while length := splits[S + 1 - len(stored), end - stored[-1]]:
            stores_S[len(stored)] = stored[-1] + length
            stored.append(stored[-1] + length)

    store_on_the_way(T, first_splits, made.forward_S)
    for k in reversed(range(T)):
        while stored[-1] > k:
            stored.pop()
        made.slot_T[k], made.start_T[k] = len(stored) - 1, stored[-1]
        store_on_the_way(k + 1, splits, made.backward_TS[k])
    return made


def _best_splits(num_steps: int, num_checkpoints: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where to store the next state, by numbers of free slots and of steps.

    Returns:
      The number of steps to take before, in the forward pass and in the backward pass;
      0: store no further state.
    """
    T, S = num_steps, num_checkpoints
    costs = np.tile(np.arange(T + 1) * (np.arange(T + 1) - 1) // 2, (S + 1, 1))
    first_costs = costs.copy()
    splits, first_splits = np.zeros((2, S + 1, T + 1), int)
    for s in range(1, S + 1):
        for n in range(2, T + 1):
            m = np.arange(1, n)  # then n - m steps have s - 1 free slots
            found = m + costs[s - 1, n - m] + costs[s, m]
            splits[s, n], costs[s, n] = m[found.argmin()], found.min()
            found = first_costs[s - 1, n - m] + costs[s, m]
            first_splits[s, n], first_costs[s, n] = m[found.argmin()], found.min()
    return first_splits, splits


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def integrate(
    step: Step, num_checkpoints: int, x: jax.Array, weights_T: Tree, constants: Tree
) -> tuple[jax.Array, Tree]:
    """Take T steps; the backward pass has a fixed number of states in memory.

    Args:
      step: `step(x, k, weights, constants) -> (x, observed)`, the step with number k.
      num_checkpoints: Number of stored states beside the first.
      x: The initial state.
      weights_T: What steps are differentiated by beside the state, with a leading axis
        of steps.
      constants: Anything that has no gradient.

    Returns:
      The state after the last step, and the other outputs with a leading axis of steps.
    """
    return _forward(step, num_checkpoints, x, weights_T, constants)[0]


def _forward(step: Step, num_checkpoints: int, x, weights_T, constants):
    num_steps = len(jax.tree.leaves(weights_T)[0])
    stores_S = jnp.asarray(schedule(num_steps, num_checkpoints).forward_S)

    def take_step(carry, numbered):
        x, slots_S = carry
        k, weights = numbered
        slots_S = _store(slots_S, x, stores_S == k)
        x, observed = step(x, k, weights, constants)
        return (x, slots_S), observed

    slots_S = jnp.zeros((num_checkpoints + 1, *x.shape), x.dtype).at[0].set(x)
    numbered = (jnp.arange(num_steps), weights_T)
    (x, slots_S), observed_T = jax.lax.scan(take_step, (x, slots_S), numbered)
    return (x, observed_T), (slots_S, weights_T, constants)


def _store(slots_S: jax.Array, x: jax.Array, is_slot_S: jax.Array) -> jax.Array:
    """Store a state in the slot, if there is one."""
    slot = is_slot_S.argmax()
    return slots_S.at[slot].set(jnp.where(is_slot_S[slot], x, slots_S[slot]))


def _backward(step: Step, num_checkpoints: int, saved, cotangents):
    slots_S, weights_T, constants = saved
    dx, dobserved_T = cotangents
    num_steps = len(jax.tree.leaves(weights_T)[0])
    plan = schedule(num_steps, num_checkpoints)

    def undo_step(carry, numbered):
        slots_S, dx = carry
        k, slot, start, stores_S, weights, dobserved = numbered

        def take_step(j, carry):
            x, slots_S = carry
            slots_S = _store(slots_S, x, stores_S == j)
            weights = jax.tree.map(lambda w_T: w_T[j], weights_T)
            return step(x, j, weights, constants)[0], slots_S

        x, slots_S = jax.lax.fori_loop(start, k, take_step, (slots_S[slot], slots_S))
        pull_back = jax.vjp(lambda x, w: step(x, k, w, constants), x, weights)[1]
        dx, dweights = pull_back((dx, dobserved))
        return (slots_S, dx), dweights

    plans = (plan.slot_T, plan.start_T, plan.backward_TS)
    numbered = (jnp.arange(num_steps), *map(jnp.asarray, plans), weights_T, dobserved_T)
    (_, dx), dweights_T = jax.lax.scan(undo_step, (slots_S, dx), numbered, reverse=True)
    return dx, dweights_T, None


integrate.defvjp(_forward, _backward)
