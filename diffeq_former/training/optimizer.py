"""AdamW (Loshchilov and Hutter 2019), Muon for the blocks' matrices (muon.py) if
configured, with schedule, decay mask, and parameter groups.
"""

import re

import jax
import jax.numpy as jnp
import optax

from diffeq_former.config import ModelConfig, OptimizerConfig
from diffeq_former.models.mup import update_factor
from diffeq_former.training.layer_coupling import couple_layers
from diffeq_former.training.muon import muon


def make_optimizer(
    c: OptimizerConfig, num_steps: int, model: ModelConfig
) -> optax.GradientTransformation:
    """Return the chain: Adam or Muon, weight decay, schedule, multiplier of the group.

    A parameter's path determines its group and whether it decays. The multiplier of the
    group scales the learning rate, and therefore weight decay as well.

    Args:
      c: The optimizer's settings.
      num_steps: The length of the schedule.
      model: The model's settings.
    """
    directions = _scale_by_moments(c, model)
    if c.layer_coupling:
        directions = couple_layers(directions, c.layer_coupling)
    return optax.chain(
        directions,
        _scale_by_size(c, model),
        optax.add_decayed_weights(
            c.weight_decay, lambda params: decays(params, c.decay_mask)
        ),
        optax.scale_by_learning_rate(make_schedule(c, num_steps)),
        _scale_by_group(c),
    )


def _scale_by_moments(
    c: OptimizerConfig, model: ModelConfig
) -> optax.GradientTransformation:
    """Return the transformation of gradients into directions of updates."""
    adam = _scale_by_adam(c)
    if c.factored_bank:
        return optax.partition(
            {True: _scale_by_factored_moments(c), False: adam},
            lambda params: _look_up(params, lambda path: _row(path)[0] == "bank"),
        )
    if c.name == "adamw":
        return adam

    def choose(path: str) -> str:
        group, is_matrix = _row(path)
        if group not in ("bank", "base") or not is_matrix:
            return "adam"
        if c.name == "weight_space_muon" and not path.endswith("/kernel"):
            return "orthogonalised before"
        return "muon"

    directions = {
        "adam": adam,
        "orthogonalised before": optax.identity(),
        "muon": muon(c, model),
    }
    return optax.partition(directions, lambda params: _look_up(params, choose))


def _scale_by_factored_moments(c: OptimizerConfig) -> optax.GradientTransformation:
    """Adam with a second moment as in Adafactor (Shazeer and Stern 2018)."""
    return optax.chain(
        optax.scale_by_factored_rms(
            decay_rate=c.b2, decay_rate_fn=_unbiased_decay, min_dim_size_to_factor=2
        ),
        optax.ema(c.b1, accumulator_dtype=c.mu_dtype),
    )


def _scale_by_adam(c: OptimizerConfig) -> optax.GradientTransformation:
    """Adam that stores its moments in the configured dtypes and computes in float32."""
    adam = optax.scale_by_adam(c.b1, c.b2, c.eps, mu_dtype=c.mu_dtype)

    def cast_nu(state: optax.ScaleByAdamState, dtype: str) -> optax.ScaleByAdamState:
        return state._replace(nu=optax.tree.cast(state.nu, dtype))

    def init(params):
        return cast_nu(adam.init(params), c.nu_dtype)

    def update(updates, state, params=None):
        updates, state = adam.update(updates, cast_nu(state, "float32"), params)
        return updates, cast_nu(state, c.nu_dtype)

    return optax.GradientTransformation(init, update)


def _unbiased_decay(step: jax.Array, b2: float) -> jax.Array:
    """Return the decay at a step (from 0) that makes a bias correction unnecessary."""
    return b2 * (1 - b2**step) / (1 - b2 ** (step + 1))


def _scale_by_size(c: OptimizerConfig, model: ModelConfig):
    """Return the scaling of directions by muP, which leaves weight decay as it is."""

    def scale(path: str, update):
        return update * update_factor(model, path, c.name)

    if model.parametrization == "standard":
        return optax.identity()
    return optax.stateless(lambda updates, _: _map_with_path(scale, updates))


def _scale_by_group(c: OptimizerConfig) -> optax.GradientTransformation:
    def scale(update, group):
        return update * getattr(c, f"{group}_multiplier")

    return optax.stateless(
        lambda updates, _: jax.tree.map(scale, updates, group_of(updates))
    )


def make_schedule(c: OptimizerConfig, num_steps: int) -> optax.Schedule:
    """Return the learning rate as a function of the number of updates so far.

    Linear warm-up takes `warmup_fraction` of the steps; the configured decay follows
    and ends after `num_steps`.
    """
    warmup = round(c.warmup_fraction * num_steps)
    rest = max(num_steps - warmup, 1)
    schedule = _decay(c, rest, min(round(c.decay_fraction * num_steps), rest))
    if warmup:
        rise = optax.linear_schedule(0.0, c.learning_rate, warmup)
        schedule = optax.join_schedules([rise, schedule], [warmup])
    # Some schedules of optax return Python numbers.
    return lambda count: jnp.asarray(schedule(count), jnp.float32)


def _decay(c: OptimizerConfig, steps: int, decay: int) -> optax.Schedule:
    """Return the schedule after warm-up.

    Args:
      c: The optimizer's settings.
      steps: The number of steps after warm-up.
      decay: The number of final steps in which a stable learning rate decays.
    """
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


# The first pattern that matches the whole path of a parameter applies. Columns:
# pattern, group, and whether it holds matrices rather than vectors (norms, biases, and
# their banks).
_TABLE = (
    (r"weights/time_mlp/(kernel_[12]|coefficients)", "time_mlp", True),
    (r"weights/time_mlp/(bias_[12]|initial)", "time_mlp", False),
    (r"weights/[^/]+/bank", "bank", True),
    (r"weights/[^/]+/bias_bank", "bank", False),
    (r"weights/[^/]+/(base|kernel)", "base", True),
    (r"weights/[^/]+/lora_[ab]", "lora", True),
    (r"weights/[^/]+/bias", "base", False),
    (r"weights/[^/]+/(scale|shift)(_bank)?", "norm", False),
    (r"final_norm/(scale|shift)", "norm", False),
    (r"embedding/(token|position)", "embedding", True),
    (r"head/kernel", "head", True),
)
GROUPS = tuple(dict.fromkeys(group for _, group, _ in _TABLE))


def group_of(params) -> dict:
    """Return a tree like `params` with the name of its group at every leaf."""
    return _look_up(params, lambda path: _row(path)[0])


def decays(params, mask: str) -> dict:
    """Return a tree like `params` with True where weight decay applies.

    Args:
      params: A tree of arrays or shapes.
      mask: `matrices`; `embeddings` (token and position embeddings only, as in the
        code that the paper's authors released); or `all`.
    """
    rules = {
        "matrices": lambda group, is_matrix: is_matrix,
        "embeddings": lambda group, is_matrix: group == "embedding",
        "all": lambda group, is_matrix: True,
    }
    return _look_up(params, lambda path: rules[mask](*_row(path)))


def _look_up(params, choose) -> dict:
    return _map_with_path(lambda path, _: choose(path), params)


def _map_with_path(function, tree) -> dict:
    def of_leaf(path, x):
        return function(jax.tree_util.keystr(path, simple=True, separator="/"), x)

    return jax.tree_util.tree_map_with_path(of_leaf, tree)


def _row(path: str) -> tuple[str, bool]:
    for pattern, group, is_matrix in _TABLE:
        if re.fullmatch(pattern, path):
            return group, is_matrix
    raise ValueError(
        f"parameter {path}: no pattern in training/optimizer.py covers it; "
        "add one, with its group"
    )
