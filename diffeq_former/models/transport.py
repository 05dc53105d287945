"""The transport cost of a state's way through depth: the integral of |dx/dt|^2.

Kan, Li and Osher 2025 (OT-Transformer) train with it as a regulariser: of all flows
with the same ends, the cheapest is the straight one at constant speed.

B batch, L length, D model, T grid steps.
"""

import jax
import jax.numpy as jnp

from diffeq_former.config import ModelConfig
from diffeq_former.models.partition import HIDDEN, constrain

COSTS = "costs"  # the collection into which a step in training sows its part


def cost_of_step(
    c: ModelConfig, before_BLD: jax.Array, after_BLD: jax.Array, length
) -> jax.Array:
    """A step's part of the integral, |x_{k+1} - x_k|^2 / h, as a mean over D: [B, L].

    In float32, h in units of the model's interval.

    Args:
      c: the model.
      before_BLD: the state before the step.
      after_BLD: and after it.
      length: of the step, as a part of the interval; None: all are equal.
    """
    h = c.step_size if length is None else c.interval * length
    difference_BLD = after_BLD.astype(jnp.float32) - before_BLD.astype(jnp.float32)
    return constrain(jnp.square(difference_BLD).mean(-1) / h, *HIDDEN[:2])


def cost(sown: dict) -> jax.Array:
    """The sum over all steps, [B, L], from what a model in training sowed."""
    [cost_TBL] = sown[COSTS]["depth"]["transport"]
    return cost_TBL.sum(0)
