"""Early exit: each token takes the solver's steps until its prediction settles.

After each step, a token predicts from where it would be at the end of depth if it went
on in a straight line. Once this prediction changes little, it does so: no more steps
are computed for it, and later tokens attend to its state on the line.

B batch, L length, D model, V vocabulary, T steps.
"""

import dataclasses

import jax
import jax.numpy as jnp

from diffeq_former.errors import UserError
from diffeq_former.models.grid import default_grid
from diffeq_former.models.transformer import Transformer
from diffeq_former.ode.grid import Grid

# Positions of each sequence whose logits are in memory at once.
_CHUNK = 128


def integrate(
    model: Transformer,
    params: dict,
    table: dict,
    tokens_BL: jax.Array,
    threshold: float,
) -> tuple[jax.Array, jax.Array]:
    """Return each token's state at the end of depth [B, L, D], and its steps [B, L].

    Args:
      model: The module, for inference.
      params: Its parameters.
      table: Its table of weights.
      tokens_BL: Token ids.
      threshold: Tokens exit when KL(p after a step || p before it), in nats, is below.

    Raises:
      UserError: If the model takes reversible steps, which have two states.
    """
    c, bound, grid = model.config, {"params": params}, default_grid(model.config)
    if c.backward == "reversible":
        raise UserError(
            "exit_threshold: a model with reversible steps has two states for each"
            " token; use a run with another model.backward"
        )

    def step(carry, given):
        x_BLD, slope_BLD, before_BLD, runs_BL, steps_BL = carry
        *_, length, rest, number = given
        after_BLD = _step(model, bound, tokens_BL, x_BLD, given[:3])
        new_BLD = (after_BLD - x_BLD) / length.astype(x_BLD.dtype)
        slope_BLD = jnp.where(runs_BL[..., None], new_BLD, slope_BLD)
        x_BLD = x_BLD + length.astype(x_BLD.dtype) * slope_BLD
        end_BLD = x_BLD + rest.astype(x_BLD.dtype) * slope_BLD
        settled_BL = _change(model, bound, before_BLD, end_BLD) < threshold
        runs_on_BL = runs_BL & ~(settled_BL & (number > 0))
        return (x_BLD, slope_BLD, end_BLD, runs_on_BL, steps_BL + runs_BL), None

    x_BLD = model.apply(bound, tokens_BL, method="embed")
    runs_BL, steps_BL = jnp.ones(tokens_BL.shape, bool), jnp.zeros(tokens_BL.shape)
    start = (x_BLD, jnp.zeros_like(x_BLD), x_BLD, runs_BL, steps_BL)
    T, lengths_T = c.num_layers, grid.lengths_T
    lengths_T = jnp.full(T, 1 / T) if lengths_T is None else lengths_T
    rest_T = 1 - jnp.cumsum(lengths_T)
    per_step = (table, grid.times_TS, lengths_T, rest_T, jnp.arange(T))
    (x_BLD, *_, steps_BL), _ = jax.lax.scan(step, start, per_step)
    return x_BLD, steps_BL


def _step(model: Transformer, bound: dict, tokens_BL, x_BLD, given) -> jax.Array:
    """Return the state after a step with given weights, times and length."""
    c, per_step = model.config, jax.tree.map(lambda w: w[None], given)
    table, times_TS, lengths_T = per_step
    single = dataclasses.replace(c, num_layers=1, horizon=c.interval)
    _, sown = model.clone(config=single).apply(
        bound,
        tokens_BL,
        embedded_BLD=x_BLD,
        table=table,
        grid=Grid(times_TS, lengths_T),
        method="hidden",
        mutable=["intermediates"],
    )
    [[after_BLD]] = sown["intermediates"]["depth"]["state"]
    return after_BLD


def _change(model: Transformer, bound: dict, before_BLD, after_BLD) -> jax.Array:
    """Return KL(p after || p before) of the predictions from two states, [B, L]."""

    def log_p(x_BD: jax.Array) -> jax.Array:
        normal_B1D = model.apply(bound, x_BD[:, None], method="normalise")
        logits_B1V = model.apply(bound, normal_B1D, method="logits")
        return jax.nn.log_softmax(logits_B1V[:, 0])

    def divergence(states_BD) -> jax.Array:
        before_BV, after_BV = (log_p(x_BD) for x_BD in states_BD)
        return (jnp.exp(after_BV) * (after_BV - before_BV)).sum(-1)

    states_LBD = tuple(x_BLD.swapaxes(0, 1) for x_BLD in (before_BLD, after_BLD))
    return jax.lax.map(divergence, states_LBD, batch_size=_CHUNK).T
