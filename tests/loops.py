"""Runs of training in this process, on one device."""

import contextlib
import dataclasses
import functools
import json
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from cases import mesh_of

from diffeq_former.config import (
    Config,
    DataConfig,
    HarnessConfig,
    ProfileConfig,
    TrackingConfig,
    TrainingConfig,
)
from diffeq_former.training import checkpoint, loop, state
from diffeq_former.training.preemption import StopRequest

TIMINGS = {
    "seconds_per_step",
    "tokens_per_second",
    "data_wait_seconds",
    "host_memory_gib",
}


class StopAfter(StopRequest):
    """Is asked once before each step, and here nowhere else."""

    def __init__(self, steps: int):
        super().__init__()
        self._left = steps

    def __call__(self) -> bool:
        if self._left == 0:
            self.signal = "SIGTERM"
        self._left -= 1
        return self.signal is not None


_make_train_steps = functools.cache(loop.make_train_steps)
_create = functools.cache(state.create)


def _of_a_step(config: Config) -> Config:
    """With defaults for what a step of training does not depend on."""
    names = ("checkpoint_every", "eval_every", "keep_best", "keep_latest")
    names += ("sample_every", "sample_prompt")
    default = TrainingConfig()
    training = dataclasses.replace(
        config.training, **{name: getattr(default, name) for name in names}
    )
    return dataclasses.replace(
        config,
        analysis_every=0,
        data=DataConfig(),
        profile=ProfileConfig(),
        tracking=TrackingConfig(),
        harness=HarnessConfig(),
        training=training,
    )


@contextlib.contextmanager
def steps_traced_once():
    """Runs whose steps do the same, in this process, share them."""

    def make_train_steps(config, mesh):
        return _make_train_steps(_of_a_step(config), mesh)

    with mock.patch.object(loop, "make_train_steps", make_train_steps):
        yield


def first_state(config, mesh) -> state.TrainState:
    """As `state.create`, which costs more than a few steps."""
    return jax.tree.map(jnp.copy, _create(_of_a_step(config), mesh))


def train(config, workdir, dataset, hooks, stop, **options) -> int:
    options = {"first_state": first_state} | options
    with steps_traced_once():
        return loop.train(config, workdir, dataset, mesh_of(), hooks, stop, **options)


def last_state(workdir, config):
    abstract = state.abstract(config, mesh_of())
    return checkpoint.restore_latest(workdir / "checkpoints", abstract)[:2]


def lines(workdir) -> list[dict]:
    text = (workdir / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if k not in TIMINGS} for line in text
    ]


def assert_same(workdir, other, config) -> None:
    (a, loss_a), (b, loss_b) = last_state(workdir, config), last_state(other, config)
    jax.tree.map(np.testing.assert_array_equal, a, b)
    assert loss_a == loss_b
    assert lines(workdir) == lines(other)
    samples = [(path / "samples.txt").read_text() for path in (workdir, other)]
    assert samples[0] == samples[1]
