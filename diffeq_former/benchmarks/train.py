"""Whole steps of training on random tokens: time, compilation and memory."""

import time
from collections.abc import Iterator

import jax
import numpy as np

from diffeq_former.benchmarks.rates import rates
from diffeq_former.benchmarks.timing import (
    alternate,
    device_peak,
    host_peak,
    ratios,
    spread,
)
from diffeq_former.benchmarks.variants import BASE
from diffeq_former.config import Config
from diffeq_former.distributed.mesh import make_mesh, shard_batch
from diffeq_former.planning.compiled import compile_step, measures
from diffeq_former.training import state


class Trainer:
    """A compiled step and its state; rows are as long as the model allows."""

    def __init__(self, config: Config):
        self.config = config
        self.mesh = make_mesh(config.mesh)
        start = time.perf_counter()
        self.compiled = compile_step(config, self.mesh.size)
        self.compile_seconds = time.perf_counter() - start
        self._state = state.create(config, self.mesh)
        self._batch = shard_batch(_random_batch(config), self.mesh)

    def run(self, steps: int) -> jax.Array:
        for _ in range(steps):
            self._state, metrics = self.compiled(self._state, self._batch)
        return metrics["loss"]


def benchmark(configs: dict[str, Config], rounds: int, steps: int) -> Iterator[dict]:
    """A line for each config; `steps` steps are timed at once.

    `seconds` are those of a step; `ratio` is the config's speed against that of the
    base: above 1 is faster. `memory` is what the compiled step needs of a device.
    """
    trainers = {name: Trainer(config) for name, config in configs.items()}
    runs = {name: lambda t=trainer: t.run(steps) for name, trainer in trainers.items()}
    seconds = alternate(runs, rounds)
    kind = jax.devices()[0].device_kind
    for name, trainer in trainers.items():
        of_a_step = spread([s / steps for s in seconds[name]])
        yield {
            "variant": name,
            "seconds": of_a_step,
            "ratio": ratios(seconds[BASE], seconds[name]),
            **rates(trainer.config, of_a_step["median"], kind, trainer.mesh.size),
            "compile_seconds": trainer.compile_seconds,
            "memory": measures(trainer.compiled)["memory"],
            "device_peak_bytes": device_peak(),
            "host_peak_bytes": host_peak(),
        }


def _random_batch(config: Config) -> dict[str, np.ndarray]:
    shape = (config.training.batch_size, config.model.max_len + 1)
    tokens = np.random.default_rng(0).integers(config.model.vocab_size, size=shape)
    tokens = tokens.astype(np.int32)
    return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}
