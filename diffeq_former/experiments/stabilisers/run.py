"""Trains one run of the study, and measures the model before and after training.

B batch, L sequence length, D model width, T grid steps.
"""

import contextlib
import dataclasses
import functools
import itertools

import jax
import numpy as np
from jax.sharding import Mesh

from diffeq_former.analysis import drift, lyapunov, sensitivity
from diffeq_former.config import Config
from diffeq_former.data.dataset import Dataset
from diffeq_former.data.pipeline import train_batches, validation_batches
from diffeq_former.distributed.mesh import on_mesh
from diffeq_former.experiments.stabilisers.models import Model
from diffeq_former.models.transformer import outer_params
from diffeq_former.training import state as states

MEAN_OF = 10  # steps over which losses are averaged
SPIKE = 1.0  # nats by which a spike exceeds the lowest average so far
PERTURBED = 16  # leading tokens of the first sequence, whose exponent is measured


def run(model: Model, dataset: Dataset, mesh: Mesh) -> dict:
    """Train one run and return its record, of JSON types and arrays."""
    config, shared = model.config, _shared(model)
    create, step = _programs(shared, mesh)
    state = create(np.uint32(config.seed))
    measure = functools.partial(_measure, shared, _held_out(config, dataset))
    start, curves = measure(state.params), {"loss": [], "grad_norm": []}
    batches = train_batches(
        dataset, batch_size=config.training.batch_size, seed=config.seed
    )
    with contextlib.closing(batches):
        for batch in itertools.islice(batches, config.training.num_steps):
            rate = np.float32(config.optimizer.learning_rate)
            state, metrics = step(state, _truncate(config, batch), rate)
            for name, values in curves.items():
                values.append(float(metrics[name]))
            if metrics["skipped_steps"]:
                break
    losses = np.array(curves["loss"])
    return {
        "final_loss": float(losses[-MEAN_OF:].mean()),
        "best_loss": float(means(losses).min()),
        "largest_grad_norm": float(np.max(curves["grad_norm"])),
        "diverged_at": divergence(losses, np.array(curves["grad_norm"])),
        "start": start,
        "end": measure(state.params),
        "curves": curves,
    }


def means(losses: np.ndarray) -> np.ndarray:
    """Average the losses over windows of `MEAN_OF` steps, or all if there are fewer.

    Windows with values that are not finite are infinite.
    """
    width = min(MEAN_OF, len(losses))
    losses = np.where(np.isfinite(losses), losses, np.inf)
    return np.lib.stride_tricks.sliding_window_view(losses, width).mean(-1)


def divergence(losses: np.ndarray, grad_norms: np.ndarray) -> int | None:
    """Return the first step, counted from 1, at which training diverges, or None.

    It diverges at a loss or gradient norm that is not finite, or at a spike: a loss
    more than `SPIKE` above the lowest average of `MEAN_OF` consecutive earlier steps.
    """
    bad = ~np.isfinite(losses + grad_norms)
    lowest = np.minimum.accumulate(means(losses))
    for k in range(MEAN_OF, len(losses)):
        bad[k] |= not losses[k] <= lowest[k - MEAN_OF] + SPIKE
    return int(bad.argmax()) + 1 if bad.any() else None


def _shared(model: Model) -> Model:
    """Return the model that is equal for all cells with the same program."""
    config = dataclasses.replace(_with_rate(model, 1.0).config, seed=0)
    return dataclasses.replace(model, config=config)


def _with_rate(model: Model, learning_rate) -> Model:
    c = model.config
    optimizer = dataclasses.replace(c.optimizer, learning_rate=learning_rate)
    return dataclasses.replace(
        model, config=dataclasses.replace(c, optimizer=optimizer)
    )


@functools.lru_cache(maxsize=1)  # cells with the same program are adjacent
def _programs(model: Model, mesh: Mesh):
    """Return functions that create the initial state and take a training step.

    Seed and learning rate are arguments, so that cells share compiled programs.
    """

    @functools.partial(jax.jit, compiler_options=states.QUICK_COMPILATION)
    def create(seed):
        return model.first_state(seed, mesh)

    @jax.jit
    def step(state, batch_BL, learning_rate):
        return _with_rate(model, learning_rate).train_step(state, batch_BL, mesh)

    return create, on_mesh(mesh, step)


def _truncate(config: Config, batch: dict) -> dict:
    return {name: x_BL[:, : config.model.max_len] for name, x_BL in batch.items()}


def _held_out(config: Config, dataset: Dataset) -> dict:
    batches = validation_batches(dataset, batch_size=config.training.batch_size)
    return _truncate(config, next(iter(batches)))


def _measure(model: Model, batch: dict, params: dict) -> dict:
    """Measure loss, drift, gradients and the largest exponent on held-out text."""
    c = model.config.model
    outer = outer_params(params)
    table = _table(model, params)
    first_BLD = sensitivity.embed(c, outer, batch["inputs"])
    loss, states_TBLD, gradient_norms_T = sensitivity.measure(
        c, outer, table, first_BLD, batch["targets"], model.step, model.logits
    )
    states_TLD = states_TBLD[:, 0, :PERTURBED]
    exponent = np.nan
    if np.isfinite(states_TLD).all():
        along = (c, table, states_TLD, states_TLD.shape[1], "whole", 1)
        exponent = lyapunov.coupled(*along, model.step)[0] * c.step_size
    states_TND = np.asarray(states_TBLD).reshape(c.num_layers + 1, -1, c.d_model)
    return {
        "validation_loss": float(loss),
        "gradient_norms": np.asarray(gradient_norms_T),
        "lyapunov": float(exponent),
    } | drift.describe(states_TND)


@functools.partial(jax.jit, static_argnums=0)
def _table(model: Model, params: dict) -> dict:
    return model.tabulate(params)
