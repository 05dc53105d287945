"""Training steps on random tokens: time, compile time and memory."""

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
from diffeq_former.planning.compiled import compile_step, memory_bytes
from diffeq_former.training import state


class Trainer:
    """A compiled training step with its state and a batch of length `max_len`."""

    def __init__(self, config: Config):
        self.config = config
        self.mesh = make_mesh(config.mesh)
        start = time.perf_counter()
        self.compiled = compile_step(config, self.mesh)
        self.compile_seconds = time.perf_counter() - start
        self._state = state.create(config, self.mesh)
        self._batch = shard_batch(_random_batch(config), self.mesh)

    def run(self, steps: int) -> jax.Array:
        """Run some steps and return the last loss."""
        for _ in range(steps):
            self._state, metrics = self.compiled(self._state, self._batch)
        return metrics["loss"]


def benchmark(
    configs: dict[str, Config], rounds: int, steps: int, beside: str | None = None
) -> Iterator[dict]:
    """Yield one record per config; each measurement times `steps` steps together.

    `seconds` is the time of one step; `ratio` is the speed relative to the base config,
    above 1 if faster; `memory` is that of the compiled step on one device. With
    `beside="torch"`, two more records are those of the plain transformer in PyTorch.
    """
    trainers = {name: Trainer(config) for name, config in configs.items()}
    others = _torch_trainers(configs[BASE]) if beside == "torch" else {}
    runs = {
        name: lambda t=trainer: t.run(steps)
        for name, trainer in (trainers | others).items()
    }
    seconds = alternate(runs, rounds)
    kind = jax.devices()[0].device_kind
    for name in runs:
        per_step = spread([s / steps for s in seconds[name]])
        config = configs.get(name, configs[BASE])
        line = {
            "variant": name,
            "seconds": per_step,
            "ratio": ratios(seconds[BASE], seconds[name]),
            **rates(config, per_step["median"], kind, trainers[BASE].mesh.size),
        }
        if trainer := trainers.get(name):
            line |= {
                "compile_seconds": trainer.compile_seconds,
                "memory": memory_bytes(trainer.compiled),
                "device_peak_bytes": device_peak(),
                "host_peak_bytes": host_peak(),
            }
        yield line


def _torch_trainers(config: Config) -> dict:
    from diffeq_former.benchmarks import torch_train

    plain, c = torch_train.plain(config), config.training
    rows = c.per_device_batch_size or c.batch_size
    return {
        name: torch_train.Trainer(plain, plain.model.vocab_size, rows, compiled)
        for name, compiled in {"torch": False, "torch_compile": True}.items()
    }


def _random_batch(config: Config) -> dict[str, np.ndarray]:
    shape = (config.training.batch_size, config.model.max_len + 1)
    tokens = np.random.default_rng(0).integers(config.model.vocab_size, size=shape)
    tokens = tokens.astype(np.int32)
    return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}
