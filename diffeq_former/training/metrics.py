"""Metrics measured on the host: throughput, memory use and time spent on data."""

import contextlib
import math
import time
from collections.abc import Iterator

import jax
import psutil
from jax.sharding import Mesh

from diffeq_former.config import Config
from diffeq_former.data.mixture import Data, progress
from diffeq_former.training.flops import flops_per_token, peak_flops

GIB = 2**30


class Meter:
    """Measures the steps between two reports."""

    def __init__(self, config: Config, dataset: Data, mesh: Mesh):
        self._dataset, seq_len = dataset, dataset.seq_len
        self._batch_size = config.training.batch_size
        self._tokens_per_step = self._batch_size * seq_len
        self._flops_per_token = {
            n: flops_per_token(config.at_depth(n).model, seq_len)
            for n in config.all_depths
        }
        self._device, self._num_devices = mesh.local_devices[0], mesh.size
        self._process = psutil.Process()
        self.restart()

    def count_step(self, depth: int) -> None:
        """Count a training step with `depth` solver steps."""
        self._steps += 1
        self._flops += self._tokens_per_step * self._flops_per_token[depth]

    @contextlib.contextmanager
    def data_wait(self) -> Iterator[None]:
        """Measure the time in this context as time spent waiting for data."""
        start = time.perf_counter()
        yield
        self._waited += time.perf_counter() - start

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Exclude the time in this context (evaluation, saving) from the step time."""
        start = time.perf_counter()
        yield
        # A report within this context may have restarted the timer.
        self._start += time.perf_counter() - max(start, self._start)

    def report(self, device_metrics: dict[str, jax.Array], step: int) -> dict:
        """Return the metrics of the device, the host and the data; restart the meter.

        Blocks until the device metrics are available. `data_wait_seconds` is the mean
        per step; `tokens_per_second` counts every position of the batch, over all
        devices.

        Args:
          device_metrics: The metrics that the training step returned.
          step: The number of steps since the beginning of the run.
        """
        values = {k: float(v) for k, v in jax.device_get(device_metrics).items()}
        seconds = (time.perf_counter() - self._start) / max(self._steps, 1)
        values |= {
            "perplexity": perplexity(values["loss"]),
            "seconds_per_step": seconds,
            "tokens_per_second": self._tokens_per_step / seconds,
            "data_wait_seconds": self._waited / max(self._steps, 1),
            "host_memory_gib": self._process.memory_info().rss / GIB,
        }
        values |= self._device_metrics(seconds)
        values |= progress(self._dataset, step * self._batch_size)
        self.restart()
        return values

    def _device_metrics(self, seconds: float) -> dict[str, float]:
        """Return the MFU and the peak memory, where the device's type provides them."""
        metrics = {}
        if peak := peak_flops(self._device.device_kind):
            flops = self._flops / max(self._steps, 1)
            metrics["mfu"] = flops / (seconds * peak * self._num_devices)
        if stats := self._device.memory_stats():
            metrics["device_memory_gib"] = stats["peak_bytes_in_use"] / GIB
        return metrics

    def restart(self) -> None:
        """Restart the step timer."""
        self._start, self._steps = time.perf_counter(), 0
        self._waited, self._flops = 0.0, 0.0


def perplexity(loss: float) -> float:
    """Return exp(loss), or infinity where a float would overflow."""
    return math.inf if loss > 700 else math.exp(loss)
