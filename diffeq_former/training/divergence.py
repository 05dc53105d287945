"""When training diverges: several bad steps in a row.

A step is bad if its loss or a gradient is not finite, or if its loss is a spike: above
`config.training.spike_factor` times the usual loss. That is the first good step's,
moved by 1 % of the way to the loss of every good step since.
"""

import jax
import jax.numpy as jnp
import numpy as np

from diffeq_former.config import TrainingConfig

NO_STEP_YET = 0.0  # as the usual loss
PART_OF_THE_WAY = 0.01


class Diverged(Exception):
    """Too many bad steps in a row, from `first_step` on."""

    def __init__(self, step: int, bad_steps: int, why: str):
        super().__init__(f"{why} in {bad_steps} steps in a row, to step {step}")
        self.step, self.first_step = step, step - bad_steps + 1


def is_spike(c: TrainingConfig, loss: jax.Array, usual_loss: jax.Array) -> jax.Array:
    known = usual_loss != NO_STEP_YET
    return known & (c.spike_factor > 0) & (loss > c.spike_factor * usual_loss)


def next_usual_loss(usual_loss: jax.Array, loss: jax.Array) -> jax.Array:
    """What is usual after a good step with this loss."""
    moved = usual_loss + PART_OF_THE_WAY * (loss - usual_loss)
    return jnp.where(usual_loss == NO_STEP_YET, loss, moved)


def check(c: TrainingConfig, step: int, metrics: dict[str, jax.Array]) -> int:
    """Raises Diverged if a step's metrics say so; else its bad steps in a row."""
    bad_steps = int(jax.device_get(metrics["bad_steps"]))
    if bad_steps < c.max_bad_steps:
        return bad_steps
    values = jax.device_get(metrics)
    if np.isfinite(values["loss"] + values["z_loss"] + values["grad_norm"]):
        usual = f"{values['usual_loss']:.4f}"
        why = f"the loss was above {c.spike_factor:g} times the usual {usual}"
    else:
        why = "the loss or a gradient was not finite"
    raise Diverged(step, bad_steps, why)
