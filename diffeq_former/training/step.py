"""The training step: a pure function of state and batch.

Shape suffixes: B batch, L length, M micro-batches.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from diffeq_former.config import Config, TrainingConfig
from diffeq_former.distributed.mesh import (
    batch_sharding,
    mesh_hardware,
    num_micro_batches,
    on_mesh,
    replicated,
)
from diffeq_former.hardware import Hardware
from diffeq_former.models.grid import default_grid
from diffeq_former.models.partition import constrain
from diffeq_former.training.divergence import is_spike, next_loss_ema
from diffeq_former.training.gradients import loss_and_gradients
from diffeq_former.training.optimizer import make_schedule
from diffeq_former.training.parts import partition
from diffeq_former.training.state import TrainState, make_update, shardings
from diffeq_former.training.update import (
    SKIP,
    UPDATE,
    UPDATE_AND_MEASURE,
    norms,
    squares,
)

StepFunction = Callable[[TrainState, dict], tuple[TrainState, dict[str, jax.Array]]]


def make_train_steps(config: Config, mesh: Mesh) -> dict[int, StepFunction]:
    """Return one step function per depth; each compiles when it is first called."""
    return {n: make_train_step(config.at_depth(n), mesh) for n in config.all_depths}


def sample_depth(config: Config, done: int) -> int:
    """Return the number of solver steps in the next training step.

    It is sampled as a function of the seed and `done` alone.

    Args:
      config: The config of the run.
      done: The number of training steps done so far.
    """
    c = config.training
    if done < c.depth_steps_from * c.num_steps:
        return config.model.num_layers
    rng = np.random.default_rng([config.seed, done])
    return int(rng.choice(config.depths))


def make_train_step(config: Config, mesh: Mesh) -> StepFunction:
    """Return the jitted step: (state, batch of [B, L] arrays) -> (state, metrics).

    The input state is donated. See `step_function`.
    """
    state_shardings = shardings(config, mesh)
    step = jax.jit(
        step_function(
            config, num_micro_batches(config.training, mesh), mesh_hardware(mesh)
        ),
        donate_argnums=0,
        in_shardings=(state_shardings, batch_sharding(mesh)),
        out_shardings=(state_shardings, replicated(mesh)),
    )
    return on_mesh(mesh, step)


def step_function(
    config: Config, num_micro_batches: int, hardware: Hardware
) -> StepFunction:
    """Return the step as a pure function, in which the learning rate may be traced.

    Dropout masks and the depth grid are sampled with the key fold_in(key(seed), step),
    and masks also with the number of the sequence in the batch.
    If the loss or a gradient is not finite, the parameters and the optimizer state stay
    unchanged and the state counts a skipped step. Spikes of the loss (divergence.py)
    are counted as well, but the update is applied.
    """
    update = make_update(config)
    schedule = make_schedule(config.optimizer, config.training.num_steps)

    def train_step(state: TrainState, batch_BL: dict):
        key = jax.random.fold_in(jax.random.key(config.seed), state.step)
        sequences_B = jnp.arange(len(batch_BL["inputs"]))
        batches_MBL = _micro_batches(
            batch_BL | {"sequences": sequences_B}, num_micro_batches
        )
        grid = default_grid(config.model)
        params = partition(config, state.unaveraged or state.params)
        losses, gradients = loss_and_gradients(
            config, params, batches_MBL, key, grid, hardware
        )
        with jax.named_scope("optimizer"):
            gradient_norms = norms("grad_norm", squares(gradients))
        norm = gradient_norms["grad_norm"]
        finite = jnp.isfinite(losses["loss"] + losses["z_loss"] + norm)
        spike = is_spike(config.training, losses["loss"], state.loss_ema)
        logged = is_logged(config.training, state.step + 1)
        action = jnp.where(finite, jnp.where(logged, UPDATE_AND_MEASURE, UPDATE), SKIP)
        with jax.named_scope("optimizer"):
            updated = update.apply(
                gradients, norm, state.opt_state, params, action, hardware
            )
        new = state.replace(
            step=state.step + 1,
            **_with_mean(config, state, updated.params.merge(), finite),
            opt_state=updated.opt_state,
            skipped_steps=state.skipped_steps + ~finite,
        )
        new = _with_counts(new, state, losses["loss"], finite & ~spike)
        metrics = losses | gradient_norms
        measured = norms("update_norm", updated.update_squares)
        measured |= norms("param_norm", updated.param_squares)
        metrics |= {k: jnp.where(logged, x, jnp.nan) for k, x in measured.items()}
        metrics |= {
            # The optimizer's own count does not include skipped steps.
            "learning_rate": schedule(state.step - state.skipped_steps),
            "bad_steps": new.bad_steps,
            "skipped_steps": new.skipped_steps,
            "loss_ema": state.loss_ema,
        }
        if config.training.depth_steps:
            metrics["depth_steps"] = jnp.float32(config.model.num_layers)
        return new, {name: x.astype(jnp.float32) for name, x in metrics.items()}

    return train_step


def _with_mean(config: Config, state: TrainState, params: dict, finite) -> dict:
    """Return the fields of the updated parameters and, with `ema_decay`, of their mean.

    The decay after n updates is at most (n + 1) / (n + 10), so that the mean of a short
    run does not consist of its first parameters.
    """
    if not config.optimizer.ema_decay:
        return {"params": params}
    n = state.step - state.skipped_steps
    decay = jnp.minimum(config.optimizer.ema_decay, (n + 1) / (n + 10))

    def next_mean(mean, x):
        return jnp.where(finite, mean + (1 - decay) * (x - mean), mean)

    mean = jax.tree.map(next_mean, state.params, params)
    return {"params": mean, "unaveraged": params}


def is_logged(c: TrainingConfig, step: int | jax.Array) -> bool | jax.Array:
    """Return whether the metrics of a step are logged: `log_every` and both ends."""
    return (step == 1) | (step % c.log_every == 0) | (step == c.num_steps)


def _micro_batches(batch_BL: dict, M: int) -> dict:
    """Split arrays [B, ...] into arrays [M, B / M, ...] of micro-batches.

    Micro-batch m holds the sequences m, m + M, m + 2M, ..., so that each device splits
    its own sequences and none are sent.
    """

    def split(x):
        x = jnp.swapaxes(x.reshape(-1, M, *x.shape[1:]), 0, 1)
        return constrain(x, None, *("batch", "length")[: x.ndim - 1])

    return jax.tree.map(split, batch_BL)


def _with_counts(
    new: TrainState, old: TrainState, loss: jax.Array, good: jax.Array
) -> TrainState:
    """Update the count of bad steps in a row and the running mean of the loss."""
    loss_ema = next_loss_ema(old.loss_ema, loss)
    return new.replace(
        bad_steps=jnp.where(good, 0, old.bad_steps + 1),
        loss_ema=jnp.where(good, loss_ema, old.loss_ema),
    )
