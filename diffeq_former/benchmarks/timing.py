"""Alternating timing, so that other load on the machine affects all runs alike."""

import resource
import statistics
import sys
import time
from collections.abc import Callable

import jax


def alternate(
    runs: dict[str, Callable[[], object]], rounds: int
) -> dict[str, list[float]]:
    """Return the seconds of each run in each round, after one warm-up round.

    A run ends when the arrays that it returns are ready. Every second round has the
    reverse order.
    """
    seconds = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name in list(runs)[:: 1 if number % 2 else -1]:
            start = time.perf_counter()
            jax.block_until_ready(runs[name]())
            if number:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def spread(values: list[float]) -> dict[str, float]:
    """Return the median and the range of the values."""
    return {
        "median": statistics.median(values),
        "low": min(values),
        "high": max(values),
    }


def ratios(values: list[float], base: list[float]) -> dict[str, float]:
    """Return the spread of value / base within each round."""
    return spread([v / b for v, b in zip(values, base, strict=True)])


def host_peak() -> int:
    """Return the peak resident memory of this process in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def device_peak() -> int | None:
    """Return the peak memory of the first device in bytes, if it reports it."""
    stats = jax.devices()[0].memory_stats()
    return stats and stats.get("peak_bytes_in_use")
