"""Times several things in turn, so that what the machine does meanwhile hits all."""

import resource
import statistics
import sys
import time
from collections.abc import Callable

import jax


def alternate(
    runs: dict[str, Callable[[], object]], rounds: int
) -> dict[str, list[float]]:
    """Seconds of each run in each round, after one round that is not counted.

    A run is over when what it returns is there. Every second round goes backwards.
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
    return {
        "median": statistics.median(values),
        "low": min(values),
        "high": max(values),
    }


def ratios(values: list[float], base: list[float]) -> dict[str, float]:
    """The spread of value / base, both of the same round."""
    return spread([v / b for v, b in zip(values, base, strict=True)])


def host_peak() -> int:
    """The most memory, in bytes, that this process has held."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def device_peak() -> int | None:
    """The same of the first device, where it tells."""
    stats = jax.devices()[0].memory_stats()
    return stats and stats.get("peak_bytes_in_use")
