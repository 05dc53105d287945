"""Trains a cell of the study, and measures it at both ends of training.

B batch, L length, D model, T grid steps.
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
from diffeq_former.models.transformer import Transformer, ends_of
from diffeq_former.training import state as states
from diffeq_former.training.step import step_function

MEAN_OF = 10  # steps whose mean is a loss
SPIKE = 1.0  # nats above the lowest such mean until then
PERTURBED = 16  # tokens of the first row, whose exponent is measured


def run(config: Config, dataset: Dataset, mesh: Mesh) -> dict:
    """The record of one run, of JSON's kinds and arrays."""
    create, step = _programs(_shared(config), mesh)
    state = create(np.uint32(config.seed))
    look = functools.partial(_look, config, _held_out(config, dataset))
    start, curves = look(state.params), {"loss": [], "grad_norm": []}
    batches = train_batches(
        dataset, batch_size=config.training.batch_size, seed=config.seed
    )
    with contextlib.closing(batches):
        for batch in itertools.islice(batches, config.training.num_steps):
            rate = np.float32(config.optimizer.learning_rate)
            state, metrics = step(state, _cut(config, batch), rate)
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
        "end": look(state.params),
        "curves": curves,
    }


def means(losses: np.ndarray) -> np.ndarray:
    """Of each `MEAN_OF` steps in a row; of all, if they are fewer; infinite for NaN."""
    width = min(MEAN_OF, len(losses))
    losses = np.where(np.isfinite(losses), losses, np.inf)
    return np.lib.stride_tricks.sliding_window_view(losses, width).mean(-1)


def divergence(losses: np.ndarray, grad_norms: np.ndarray) -> int | None:
    """The first step, from 1, with a spike, or anything that is not finite.

    A spike is a loss that is `SPIKE` above the lowest mean of `MEAN_OF` steps in a row
    before it.
    """
    bad = ~np.isfinite(losses + grad_norms)
    lowest = np.minimum.accumulate(means(losses))
    for k in range(MEAN_OF, len(losses)):
        bad[k] |= not losses[k] <= lowest[k - MEAN_OF] + SPIKE
    return int(bad.argmax()) + 1 if bad.any() else None


def _shared(config: Config) -> Config:
    """The same for all cells of one program."""
    optimizer = dataclasses.replace(config.optimizer, learning_rate=1.0)
    return dataclasses.replace(config, seed=0, optimizer=optimizer)


@functools.lru_cache(maxsize=1)  # cells of one program stand together
def _programs(config: Config, mesh: Mesh):
    """The project's own first state and step, with seed and rate as arguments."""

    @functools.partial(jax.jit, compiler_options=states.QUICK_COMPILATION)
    def create(seed):
        params = states.first_params(dataclasses.replace(config, seed=seed))
        return states.with_params(config, mesh, params)

    @jax.jit
    def step(state, batch_BL, learning_rate):
        changed = dataclasses.replace(config.optimizer, learning_rate=learning_rate)
        of_rate = dataclasses.replace(config, optimizer=changed)
        return step_function(of_rate, 1)(state, batch_BL)

    return create, on_mesh(mesh, step)


def _cut(config: Config, batch: dict) -> dict:
    return {name: x_BL[:, : config.model.max_len] for name, x_BL in batch.items()}


def _held_out(config: Config, dataset: Dataset) -> dict:
    batches = validation_batches(dataset, batch_size=config.training.batch_size)
    return _cut(config, next(iter(batches)))


def _look(config: Config, batch: dict, params: dict) -> dict:
    """Loss, drift, gradients by depth and the largest exponent, of held-out text."""
    c = config.model
    ends = ends_of(params)
    table = _table(c, params)
    first_BLD = sensitivity.embed(c, ends, batch["inputs"])
    loss, states_TBLD, gradient_norms_T = sensitivity.measure(
        c, ends, table, first_BLD, batch["targets"]
    )
    states_TLD = states_TBLD[:, 0, :PERTURBED]
    exponent = np.nan
    if np.isfinite(states_TLD).all():
        along = (c, table, states_TLD, states_TLD.shape[1], "whole", 1)
        exponent = lyapunov.coupled(*along)[0] * c.step_size
    states_TND = np.asarray(states_TBLD).reshape(c.num_layers + 1, -1, c.d_model)
    return {
        "validation_loss": float(loss),
        "gradient_norms": np.asarray(gradient_norms_T),
        "lyapunov": float(exponent),
    } | drift.describe(states_TND)


@functools.partial(jax.jit, static_argnums=0)
def _table(c, params: dict) -> dict:
    return Transformer(c).apply({"params": params}, method="tabulate")
