"""Learning rates over the steps: linear warm-up from 0, then one of four shapes."""

import optax

from diffeq_former.config import OptimizerConfig


def make_schedule(c: OptimizerConfig, num_steps: int) -> optax.Schedule:
    """From the number of updates so far to the learning rate of the next.

    The peak is reached after `warmup_fraction` of the steps, the end of the shape's
    decline after all of them.
    """
    warmup = round(c.warmup_fraction * num_steps)
    rest = max(num_steps - warmup, 1)
    shape = _shape(c, rest, min(round(c.decay_fraction * num_steps), rest))
    if warmup == 0:
        return shape
    rise = optax.linear_schedule(0.0, c.learning_rate, warmup)
    return optax.join_schedules([rise, shape], [warmup])


def _shape(c: OptimizerConfig, steps: int, decay: int) -> optax.Schedule:
    peak, end = c.learning_rate, c.learning_rate * c.final_fraction
    if c.schedule == "linear":
        return optax.linear_schedule(peak, end, steps)
    if c.schedule == "cosine":
        return optax.cosine_decay_schedule(peak, steps, c.final_fraction)
    stable = optax.constant_schedule(peak)
    if c.schedule == "constant" or decay == 0:
        return stable
    decline = optax.linear_schedule(peak, end, decay)
    return optax.join_schedules([stable, decline], [steps - decay])
