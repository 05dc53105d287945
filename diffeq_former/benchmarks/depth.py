"""What more steps over depth cost the compiler and the memory."""

import dataclasses
from collections.abc import Iterator

import jax

from diffeq_former.benchmarks.timing import alternate, spread
from diffeq_former.config import Config
from diffeq_former.planning.compiled import compile_step, measures
from diffeq_former.planning.memory import kept_bytes
from diffeq_former.planning.shapes import micro_batches
from diffeq_former.sharding.mesh import make_mesh

NUM_LAYERS = (6, 12, 24, 48)


def benchmark(configs: dict[str, Config], rounds: int, steps: int) -> Iterator[dict]:
    """A line for each config at each number of layers.

    `temp_bytes` are the compiled step's temporaries, `saved_bytes` those of them that
    the policy keeps between the steps over depth.
    """
    del steps
    for name, config in configs.items():
        mesh = make_mesh(config.mesh)
        compiled = {}

        def compile_at(num_layers, config=config, mesh=mesh, compiled=compiled):
            jax.clear_caches()
            model = dataclasses.replace(config.model, num_layers=num_layers)
            deeper = dataclasses.replace(config, model=model)
            compiled[num_layers] = compile_step(deeper, mesh.size)

        runs = {n: lambda n=n: compile_at(n) for n in NUM_LAYERS}
        seconds = alternate(runs, rounds)
        sizes = {axis: mesh.shape[axis] for axis in mesh.axis_names}
        saved = kept_bytes(
            config, sizes, config.model.max_len, False, config.model.remat
        )
        for n in NUM_LAYERS:
            yield {
                "variant": name,
                "num_layers": n,
                "compile_seconds": spread(seconds[n]),
                "temp_bytes": measures(compiled[n])["memory"]["temp"],
                "saved_bytes": round(n * saved),
                "num_micro_batches": micro_batches(config, sizes),
            }
