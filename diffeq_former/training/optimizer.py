"""AdamW (Loshchilov and Hutter 2019) with clipping, a decay mask and group rates."""

import jax
import optax

from diffeq_former.config import OptimizerConfig
from diffeq_former.training.parameter_groups import decays, group_of
from diffeq_former.training.schedules import make_schedule


def make_optimizer(
    c: OptimizerConfig, num_steps: int, params
) -> optax.GradientTransformation:
    """Clip -> Adam -> decay -> schedule -> multiplier of the parameter's group.

    The multiplier scales the learning rate, so the decay with it.

    Args:
      c: all its settings.
      num_steps: length of the schedule.
      params: the parameters, or their shapes.
    """
    clip = [optax.clip_by_global_norm(c.clip_norm)] if c.clip_norm else []
    return optax.chain(
        *clip,
        optax.scale_by_adam(c.b1, c.b2, c.eps),
        optax.add_decayed_weights(c.weight_decay, decays(params, c.decay_mask)),
        optax.scale_by_learning_rate(make_schedule(c, num_steps)),
        _scale_by_group(c, params),
    )


def _scale_by_group(c: OptimizerConfig, params) -> optax.GradientTransformation:
    multipliers = jax.tree.map(
        lambda group: getattr(c, f"{group}_multiplier"), group_of(params)
    )
    return optax.stateless(
        lambda updates, _: jax.tree.map(lambda u, m: u * m, updates, multipliers)
    )
