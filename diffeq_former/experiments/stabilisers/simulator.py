"""A simulator of a partial differential equation in token position and depth.

  du/dt = interaction(u, t) + reaction(u, t) + diffusion(t) * (u_xx - 2 u_x + ...)

arXiv 2408.09523 compares a Transformer with "a PDE simulator that lacks explicit
stabilizers". Its abstract does not define the simulator; this one is our reading of it.
The interaction is causal self-attention, the reaction the feed-forward term, both as in
GPT-2; diffusion is the causal backward difference of analysis/pde.py. All coefficients
are learned and constant during each step, as are the weights of a Transformer's layer.
Explicit Euler steps integrate the sum of the three terms. There is no norm, not even
before the head, and nothing is added to what the integrator itself adds to the state.

Stabilisers are added to it one at a time: norms of the terms' inputs or of the states
(models/stabilisers.py), or one before the head. A residual coefficient of 0 removes the
integrator's own residual connection: u <- h f(u).

B batch, L length, D model, V vocabulary, T steps, S stage times of a step (always 1).
"""

import dataclasses
import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from diffeq_former.analysis import depth, pde, sensitivity
from diffeq_former.config import Config, ModelConfig
from diffeq_former.experiments.stabilisers.models import table_of
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.init_scale import kernel_stddev
from diffeq_former.models.loss import cross_entropy_objective
from diffeq_former.models.stabilisers import stabilised_step
from diffeq_former.models.transformer import outer_params
from diffeq_former.models.weight_specs import LinearSpec
from diffeq_former.training import state as states
from diffeq_former.training.optimizer import make_optimizer

FIRST_SHARE = 0.1  # of the largest stable diffusion coefficient, before training


def coefficient(c: ModelConfig, scale: jax.Array) -> jax.Array:
    """Return the diffusion coefficient, from 0 to the largest that is stable.

    Args:
      c: The model's config.
      scale: The parameter, any real number.
    """
    return pde.LIMIT / c.step_size * jax.nn.sigmoid(scale)


def step(c: ModelConfig, weights_S: dict, x_LD: jax.Array, field: str = "whole"):
    """Take one step of the simulator; as `depth.step`, with diffusion."""
    attention, feed_forward = depth.terms(c, weights_S, field)
    diffusion = coefficient(c, weights_S["diffusion"]["scale"][0])
    terms = (pde.with_diffusion(attention, diffusion, "causal"), feed_forward)
    return stabilised_step(c, BLOCKS[c.block], terms, weights_S, x_LD, c.step_size)


def logits(c: ModelConfig, outer: dict, x_LD: jax.Array) -> jax.Array:
    """Return the logits [L, V] of these states; as `depth.logits`."""
    return normalised(c, outer, x_LD) @ outer["embedding"]["token"].T


def normalised(c: ModelConfig, outer: dict, x: jax.Array) -> jax.Array:
    """Return states [..., D], normalised if the parameters include a final norm."""
    if "final_norm" not in outer:
        return x
    return BLOCKS[c.block].final_norm(outer["final_norm"], x, c.norm_eps)


class State(NamedTuple):
    """The state of a training."""

    params: dict
    opt_state: optax.OptState


@dataclasses.dataclass(frozen=True)
class Simulator:
    """A model of the study, see models.py.

    Its parameters are those of a Transformer with the same config, except for the
    final norm, and `weights/diffusion/scale` [T].
    """

    config: Config
    head_norm: bool
    step: ClassVar[Callable] = staticmethod(step)
    logits: ClassVar[Callable] = staticmethod(logits)

    def first_state(self, seed: jax.Array, mesh: Mesh) -> State:
        """Return the state before training.

        Kernels have variance 1 / inputs, so that the terms are of the state's size
        although nothing normalises it.
        """
        c = self.config.model
        params = states.first_params(dataclasses.replace(self.config, seed=seed))
        for name, spec in BLOCKS[c.block].weight_specs(c).items():
            if isinstance(spec, LinearSpec):
                wanted = math.prod(spec.input_shape) ** -0.5
                params["weights"][name]["kernel"] *= wanted / kernel_stddev(c, spec)
        odds = math.log(FIRST_SHARE / (1 - FIRST_SHARE))
        params["weights"]["diffusion"] = {
            "scale": jnp.full(c.num_layers, odds, jnp.float32)
        }
        if not self.head_norm:
            del params["final_norm"]
        return State(params, self._optimizer.init(params))

    def train_step(self, state: State, batch_BL: dict, mesh: Mesh):
        """Return the next state and metrics; an update that is not finite is skipped.

        The learning rate of the config may be traced.
        """
        loss, gradients = jax.value_and_grad(self.loss)(state.params, batch_BL)
        norm = optax.tree.norm(gradients)
        params, opt_state = state
        updates, opt_state = self._optimizer.update(gradients, opt_state, params)
        new = State(optax.apply_updates(params, updates), opt_state)
        finite = jnp.isfinite(loss + norm)
        state = jax.tree.map(lambda x, old: jnp.where(finite, x, old), new, state)
        return state, {"loss": loss, "grad_norm": norm, "skipped_steps": ~finite}

    def loss(self, params: dict, batch_BL: dict) -> jax.Array:
        """Return the mean loss in nats per token."""
        c, outer = self.config.model, outer_params(params)

        def body(x_BLD, weights_S):
            return jax.vmap(lambda x_LD: step(c, weights_S, x_LD))(x_BLD), None

        x_BLD = sensitivity.embed(c, outer, batch_BL["inputs"])
        x_BLD, _ = jax.lax.scan(body, x_BLD, self.tabulate(params))
        total, sums = cross_entropy_objective(
            normalised(c, outer, x_BLD),
            outer["embedding"]["token"].T,
            batch_BL["targets"],
            self.config.training.loss_chunk,
            0.0,
        )
        return total / sums["tokens"]

    def tabulate(self, params: dict) -> dict:
        """Return the weight table, arrays with leading axes [T, S]."""
        scale_TS = params["weights"]["diffusion"]["scale"][:, None]
        return table_of(self.config.model, params) | {"diffusion": {"scale": scale_TS}}

    @property
    def _optimizer(self) -> optax.GradientTransformation:
        return make_optimizer(
            self.config.optimizer,
            self.config.training.num_steps,
            self.config.model,
        )
