"""Detection of divergence: several bad steps in a row, or a last state of no use.

A step is bad if its loss or a gradient is not finite, or if its loss is a spike: above
`config.training.spike_factor` times the running mean of the loss. The running mean
(`loss_ema`) is an exponential moving average over the good steps, with a decay of
0.99; it starts with the loss of the first good step.
"""

import jax
import jax.numpy as jnp
import numpy as np

from diffeq_former.config import TrainingConfig

NO_STEP_YET = 0.0  # the value of the running mean before the first good step
_EMA_WEIGHT = 0.01  # of the newest loss


class Diverged(Exception):
    """Raised when training has diverged.

    Args:
      why: What was found.
      first_step: The first bad step; the state before it may be the cause.
    """

    def __init__(self, why: str, first_step: int):
        super().__init__(why)
        self.first_step = first_step


def is_spike(c: TrainingConfig, loss: jax.Array, loss_ema: jax.Array) -> jax.Array:
    """Return whether the loss is a spike, given the running mean before it."""
    known = loss_ema != NO_STEP_YET
    return known & (c.spike_factor > 0) & (loss > c.spike_factor * loss_ema)


def next_loss_ema(loss_ema: jax.Array, loss: jax.Array) -> jax.Array:
    """Return the running mean of the loss after a good step with this loss."""
    mean = loss_ema + _EMA_WEIGHT * (loss - loss_ema)
    return jnp.where(loss_ema == NO_STEP_YET, loss, mean)


def check(c: TrainingConfig, step: int, metrics: dict[str, jax.Array]) -> int:
    """Return the current number of bad steps in a row.

    Raises:
      Diverged: If that number has reached `c.max_bad_steps`.
    """
    bad_steps = int(jax.device_get(metrics["bad_steps"]))
    if bad_steps < c.max_bad_steps:
        return bad_steps
    values = jax.device_get(metrics)
    if np.isfinite(values["loss"] + values["z_loss"] + values["grad_norm"]):
        mean = f"{values['loss_ema']:.4f}"
        why = f"the loss was above {c.spike_factor:g} times its running mean {mean}"
    else:
        why = "the loss or a gradient was not finite"
    raise Diverged(
        f"{why} in {bad_steps} steps in a row, up to step {step}", step - bad_steps + 1
    )


def check_last(step: int, state, bad_steps: int, loss: float | None) -> None:
    """Check the last state of a run.

    Args:
      step: The last step.
      state: The parameters and moments after it.
      bad_steps: The number of bad steps in a row up to it.
      loss: The validation loss after it, if it was evaluated.

    Raises:
      Diverged: If a parameter, a moment or the loss is not finite.
    """
    if loss is not None and not np.isfinite(loss):
        why = f"the validation loss after step {step} is not finite"
    elif not _all_finite(state):
        why = f"a parameter or a moment after step {step} is not finite"
    else:
        return
    raise Diverged(why, step - bad_steps + 1)


@jax.jit
def _all_finite(tree) -> jax.Array:
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.stack([jnp.isfinite(x).all() for x in leaves]).all()
