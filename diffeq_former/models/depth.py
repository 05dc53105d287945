"""Integration over depth, and the states that its backward pass has in memory.

`ModelConfig.backward` selects among

  stored      the state before each step;
  binomial    a fixed number of them, between which steps are computed again;
  reversible  none: steps are reversed. They are those of a coupled method (see
              ode/reversible.py), in training and afterwards.

B batch, L length, D model, T grid steps, S stage times of a step.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from diffeq_former.config import ModelConfig
from diffeq_former.hardware import Hardware
from diffeq_former.models.remat import POLICIES, recomputed
from diffeq_former.models.scan import scan_over_grid
from diffeq_former.models.step import Step
from diffeq_former.models.transport import COSTS, cost_of_step
from diffeq_former.ode import binomial, reversible
from diffeq_former.ode.reversible import Coupled

State = jax.Array | Coupled


def depth_module(
    c: ModelConfig, train: bool, cached: bool, hardware: Hardware
) -> nn.Module:
    """Return the module that takes all steps, called as a scan over `Step`."""
    if train and c.backward != "stored":
        return CustomBackward(c, hardware)
    body = ReversibleStep if c.backward == "reversible" else Step
    scan = scan_over_grid(body, c.num_layers, POLICIES[c.remat], c.remat != "none")
    return scan(c, train, cached, hardware)


def initial_state(c: ModelConfig, x_BLD: jax.Array) -> State:
    """Return the state of the model's method at the start of depth."""
    if c.backward != "reversible":
        return x_BLD
    return Coupled(*2 * (x_BLD.astype(jnp.float32),))


def solution(c: ModelConfig, state: State) -> jax.Array:
    """Return x(t) in a state of the model's method, [B, L, D]."""
    return state.y.astype(c.dtype) if c.backward == "reversible" else state


class ReversibleStep(nn.Module):
    """A step of the coupled method, without a backward pass of its own; see `Step`."""

    config: ModelConfig
    train: bool
    cached: bool
    hardware: Hardware

    @nn.compact
    def __call__(self, state: Coupled, per_step, context):
        def increment(step: Step, x_BLD):
            return step(x_BLD, per_step, context)[0] - x_BLD

        fields = (self.config, self.train, self.cached, self.hardware)
        forward = functools.partial(increment, Step(*fields, name="forward"))
        backward = functools.partial(
            increment, Step(*fields, reverse=True, name="backward")
        )
        state = reversible.step(forward, backward, state)
        self.sow("intermediates", "state", state.y)
        return state, None


class CustomBackward(nn.Module):
    """All steps in training, with the backward pass that the config selects."""

    config: ModelConfig
    hardware: Hardware

    @nn.compact
    def __call__(self, state: State, per_step, context):
        c, fields = self.config, (self.config, self.hardware)
        weights_TS, lengths_T = per_step
        key = self.make_rng("dropout") if self.has_rng("dropout") else None
        given = (weights_TS, (lengths_T, context, key))
        if c.backward == "binomial":
            step = functools.partial(_step, *fields)
            state, cost_TBL = binomial.integrate(step, c.num_checkpoints, state, *given)
        else:
            method = reversible.Method(
                functools.partial(_increment, *fields), functools.partial(_cost, c)
            )
            state, cost_TBL = reversible.integrate(method, state, *given)
        self.sow(COSTS, "transport", cost_TBL)
        return state, None


def _advance(c: ModelConfig, hardware: Hardware, reverse, x_BLD, k, weights, constants):
    """Return the state after step k, or after the same step in reverse."""
    lengths_T, context, key = constants
    rngs = {} if key is None else {"dropout": jax.random.fold_in(key, 2 * k + reverse)}
    step = Step(c, train=True, cached=False, hardware=hardware, reverse=reverse)

    def apply(x_BLD, weights):
        per_step = (weights, None if lengths_T is None else lengths_T[k])
        return step.apply({}, x_BLD, per_step, context, rngs=rngs)[0]

    if c.remat != "none":
        apply = recomputed(apply, c.remat)
    return apply(x_BLD, weights)


def _increment(c, hardware, reverse: bool, x_BLD, k, weights, constants):
    return _advance(c, hardware, reverse, x_BLD, k, weights, constants) - x_BLD


def _step(c, hardware, x_BLD, k, weights, constants):
    after_BLD = _advance(c, hardware, False, x_BLD, k, weights, constants)
    return after_BLD, _cost(c, x_BLD, after_BLD, k, constants)


def _cost(c: ModelConfig, before_BLD, after_BLD, k, constants):
    lengths_T = constants[0]
    length = None if lengths_T is None else lengths_T[k]
    return cost_of_step(c, before_BLD, after_BLD, length)
