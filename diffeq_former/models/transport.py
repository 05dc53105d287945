"""Transport cost of the flow through depth: the integral of |dx/dt|^2.

Kan, Li and Osher 2025 (OT-Transformer) use it as a regulariser: among all flows between
the same end points, straight ones at constant speed minimise it.

B batch, L length, D model, T grid steps.
"""

import jax
import jax.numpy as jnp

from diffeq_former.config import ModelConfig
from diffeq_former.models.partition import HIDDEN, constrain

COSTS = "costs"  # collection in which training steps sow their costs


def cost_of_step(
    c: ModelConfig, before_BLD: jax.Array, after_BLD: jax.Array, length
) -> jax.Array:
    """Return a step's contribution |x_{k+1} - x_k|^2 / h to the cost, [B, L], float32.

    The square is averaged over D; h is in units of the model's depth interval.

    Args:
      c: The model's configuration.
      before_BLD: The state before the step.
      after_BLD: The state after the step.
      length: The step's length as a fraction of the interval; None if all steps have
        the same length.
    """
    h = c.step_size if length is None else c.interval * length
    difference_BLD = after_BLD.astype(jnp.float32) - before_BLD.astype(jnp.float32)
    return constrain(jnp.square(difference_BLD).mean(-1) / h, *HIDDEN[:2])


def cost(sown: dict) -> jax.Array:
    """Sum over steps the costs that a model sowed in training: [B, L]."""
    [cost_TBL] = sown[COSTS]["depth"]["transport"]
    return cost_TBL.sum(0)
