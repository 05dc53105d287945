"""One step of training: a pure function of state and batch.

B batch, L length, M micro-batches.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from diffeq_former.config import Config
from diffeq_former.distributed.mesh import (
    batch_sharding,
    num_micro_batches,
    on_mesh,
    replicated,
)
from diffeq_former.models.grid import own_grid
from diffeq_former.models.partition import constrain
from diffeq_former.ode import grid as grids
from diffeq_former.ode.solvers import SOLVERS
from diffeq_former.training import trainable
from diffeq_former.training.divergence import is_spike, next_usual_loss
from diffeq_former.training.gradients import loss_and_gradients
from diffeq_former.training.optimizer import make_schedule
from diffeq_former.training.state import TrainState, shardings, update_of
from diffeq_former.training.update import norms, squares

# Keeps the grid's key apart from those that dropout is drawn from.
GRID_KEY = 2**32 - 1
StepFunction = Callable[[TrainState, dict], tuple[TrainState, dict[str, jax.Array]]]


def make_train_steps(config: Config, mesh: Mesh) -> dict[int, StepFunction]:
    """The step of each depth; it compiles when it is first called."""
    return {n: make_train_step(config.at_depth(n), mesh) for n in config.all_depths}


def depth_of_step(config: Config, done: int) -> int:
    """The solver steps of the step after `done`, drawn from them and the seed."""
    c = config.training
    if done < c.depth_steps_from * c.num_steps:
        return config.model.num_layers
    draw = np.random.default_rng([config.seed, done])
    return int(draw.choice(config.depths))


def make_train_step(config: Config, mesh: Mesh) -> StepFunction:
    """The compiled step (state, batch of [B, L]) -> (state, metrics); reuses the state.

    See `step_function`.
    """
    places = shardings(config, mesh)
    step = jax.jit(
        step_function(config, num_micro_batches(config.training, mesh)),
        donate_argnums=0,
        in_shardings=(places, batch_sharding(mesh)),
        out_shardings=(places, replicated(mesh)),
    )
    return on_mesh(mesh, step)


def step_function(config: Config, num_micro_batches: int) -> StepFunction:
    """The step as a pure function, in which the learning rate may be traced.

    Dropout and the grid of depth are drawn from fold_in(key(seed), step). If the loss
    or a gradient is not finite, parameters and optimizer stay as they were and the
    state counts it. It also counts spikes, see divergence.py; they change nothing.
    """
    update = update_of(config)
    schedule = make_schedule(config.optimizer, config.training.num_steps)

    def train_step(state: TrainState, batch_BL: dict):
        key = jax.random.fold_in(jax.random.key(config.seed), state.step)
        batches_MBL = _micro_batches(batch_BL, num_micro_batches)
        grid = _draw_grid(config, key)
        losses, gradients = loss_and_gradients(
            config, state.params, batches_MBL, key, grid
        )
        with jax.named_scope("optimizer"):
            gradient_norms = norms("grad_norm", squares(gradients))
        norm = gradient_norms["grad_norm"]
        finite = jnp.isfinite(losses["loss"] + losses["z_loss"] + norm)
        spike = is_spike(config.training, losses["loss"], state.usual_loss)
        trained, frozen = trainable.split(config, state.params)
        with jax.named_scope("optimizer"):
            updated = update.apply(gradients, norm, state.opt_state, trained, finite)
        new = state.replace(
            step=state.step + 1,
            params=trainable.join(updated.params, frozen),
            opt_state=updated.opt_state,
            skipped_steps=state.skipped_steps + ~finite,
        )
        new = _with_counts(new, state, losses["loss"], finite & ~spike)
        metrics = losses | gradient_norms
        metrics |= norms("update_norm", updated.update_squares)
        metrics |= norms("param_norm", updated.param_squares)
        metrics |= {
            # What is skipped does not count as an update in the optimizer either.
            "learning_rate": schedule(state.step - state.skipped_steps),
            "bad_steps": new.bad_steps,
            "skipped_steps": new.skipped_steps,
            "usual_loss": state.usual_loss,
        }
        if config.training.depth_steps:
            metrics["depth_steps"] = jnp.float32(config.model.num_layers)
        return new, {name: x.astype(jnp.float32) for name, x in metrics.items()}

    return train_step


def _draw_grid(config: Config, key: jax.Array) -> grids.Grid:
    c, kind = config.model, config.training.depth_grid
    if kind == "fixed":
        return own_grid(c)
    of_grid = jax.random.fold_in(key, GRID_KEY)
    return grids.draw(kind, of_grid, c.num_layers, SOLVERS[c.solver].nodes)


def _micro_batches(batch_BL: dict, M: int) -> dict:
    """Rows m, m + M, m + 2M, ... are micro-batch m: each device splits its own rows."""

    def split(x_BL):
        x_MBL = jnp.swapaxes(x_BL.reshape(-1, M, x_BL.shape[1]), 0, 1)
        return constrain(x_MBL, None, "batch", "length")

    return jax.tree.map(split, batch_BL)


def _with_counts(
    new: TrainState, old: TrainState, loss: jax.Array, good: jax.Array
) -> TrainState:
    usual_loss = next_usual_loss(old.usual_loss, loss)
    return new.replace(
        bad_steps=jnp.where(good, 0, old.bad_steps + 1),
        usual_loss=jnp.where(good, usual_loss, old.usual_loss),
    )
