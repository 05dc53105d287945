"""AdamW (Loshchilov and Hutter 2019) with a decay mask and group rates."""

import jax
import optax

from diffeq_former.config import OptimizerConfig
from diffeq_former.training.parameter_groups import decays, group_of
from diffeq_former.training.schedules import make_schedule


def make_optimizer(
    c: OptimizerConfig, num_steps: int, params
) -> optax.GradientTransformation:
    """Adam -> decay -> schedule -> multiplier of the parameter's group.

    The multiplier scales the learning rate, so the decay with it.

    Args:
      c: all its settings.
      num_steps: length of the schedule.
      params: the parameters, or their shapes.
    """
    return optax.chain(
        _scale_by_moments(c, params),
        optax.add_decayed_weights(c.weight_decay, decays(params, c.decay_mask)),
        optax.scale_by_learning_rate(make_schedule(c, num_steps)),
        _scale_by_group(c, params),
    )


def _scale_by_moments(c: OptimizerConfig, params) -> optax.GradientTransformation:
    """Adam; the bank's squares factored as in Adafactor (Shazeer and Stern 2018)."""
    if not c.factored_bank:
        return _scale_by_adam(c)
    is_bank = jax.tree.map(lambda group: group == "bank", group_of(params))
    factored = optax.chain(
        optax.scale_by_factored_rms(
            decay_rate=c.b2, decay_rate_fn=_unbiased_decay, min_dim_size_to_factor=2
        ),
        optax.ema(c.b1, accumulator_dtype=c.mu_dtype),
    )
    transformations = {True: factored, False: _scale_by_adam(c)}
    return optax.partition(transformations, is_bank)


def _scale_by_adam(c: OptimizerConfig) -> optax.GradientTransformation:
    """Adam whose moments are kept in their dtypes, and computed in float32."""
    adam = optax.scale_by_adam(c.b1, c.b2, c.eps, mu_dtype=c.mu_dtype)

    def keep(state: optax.ScaleByAdamState, dtype: str) -> optax.ScaleByAdamState:
        return state._replace(nu=optax.tree.cast(state.nu, dtype))

    def init(params):
        return keep(adam.init(params), c.nu_dtype)

    def update(updates, state, params=None):
        updates, state = adam.update(updates, keep(state, "float32"), params)
        return updates, keep(state, c.nu_dtype)

    return optax.GradientTransformation(init, update)


def _unbiased_decay(step: jax.Array, b2: float) -> jax.Array:
    """The decay at a step (from 0) with which the mean needs no correction."""
    return b2 * (1 - b2**step) / (1 - b2 ** (step + 1))


def _scale_by_group(c: OptimizerConfig, params) -> optax.GradientTransformation:
    multipliers = jax.tree.map(
        lambda group: getattr(c, f"{group}_multiplier"), group_of(params)
    )
    return optax.stateless(
        lambda updates, _: jax.tree.map(lambda u, m: u * m, updates, multipliers)
    )
