"""Compile time and memory of a training step by number of layers."""

import dataclasses
from collections.abc import Iterator

import jax

from diffeq_former.benchmarks.timing import alternate, spread
from diffeq_former.config import Config
from diffeq_former.distributed.mesh import make_mesh
from diffeq_former.planning import shapes
from diffeq_former.planning.compiled import compile_step, memory_bytes
from diffeq_former.planning.memory import kept_bytes

NUM_LAYERS = (6, 12, 24, 48)


def benchmark(configs: dict[str, Config], rounds: int, steps: int) -> Iterator[dict]:
    """Yield one record per config and number of layers.

    `temp_bytes` are the compiled step's temporaries. They include `saved_bytes`, which
    the remat policy saves for all solver steps (on a CPU), and `table_bytes`, the
    weight table, whose gradient is as large.
    """
    del steps
    for name, config in configs.items():
        compiled = {}

        def compile_at(n: int, config=config, compiled=compiled):
            jax.clear_caches()
            compiled[n] = compile_step(_with_layers(config, n), make_mesh(config.mesh))

        runs = {n: lambda n=n, run=compile_at: run(n) for n in NUM_LAYERS}
        for n, seconds in alternate(runs, rounds).items():
            yield {
                "variant": name,
                "num_layers": n,
                "compile_seconds": spread(seconds),
                "temp_bytes": memory_bytes(compiled[n])["temp"],
                **_parts(_with_layers(config, n)),
            }


def _with_layers(config: Config, num_layers: int) -> Config:
    model = dataclasses.replace(config.model, num_layers=num_layers)
    return dataclasses.replace(config, model=model)


def _parts(config: Config) -> dict[str, int]:
    c, sizes = config.model, dict(make_mesh(config.mesh).shape)
    saved = c.num_layers * kept_bytes(config, sizes, c.max_len, False, c.remat)
    table = sum(array.num_bytes(sizes) for array in shapes.table(c))
    return {"saved_bytes": round(saved), "table_bytes": round(table)}
