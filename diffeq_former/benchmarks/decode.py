"""Throughput of text generation by batch size."""

import functools
from collections.abc import Iterator

import jax

from diffeq_former.benchmarks.timing import alternate, spread
from diffeq_former.config import Config
from diffeq_former.distributed.mesh import make_mesh
from diffeq_former.inference.generate import Generator
from diffeq_former.training import state

BATCH_SIZES = (1, 4, 16, 64)
PROMPT = 15  # tokens, without the start token


def benchmark(configs: dict[str, Config], rounds: int, steps: int) -> Iterator[dict]:
    """Yield one record per config and batch size.

    Generation fills `max_len`; the time includes the prefill of the prompts.
    """
    del steps
    for name, config in configs.items():
        mesh = make_mesh(config.mesh)
        params = state.create(config, mesh).params
        generator = Generator(config.model, mesh)
        new = config.model.max_len - PROMPT - 1
        generate = functools.partial(
            generator.generate,
            params,
            max_new_tokens=new,
            before=[0],
            ends=[],
        )
        runs = {
            n: functools.partial(generate, [[i % 7] * PROMPT for i in range(n)])
            for n in BATCH_SIZES
        }
        for n, seconds in alternate(runs, rounds).items():
            middle = spread(seconds)
            yield {
                "variant": name,
                "batch_size": n,
                "seconds": middle,
                "tokens_per_second": n * new / middle["median"],
                "tokens_per_second_a_row": new / middle["median"],
                "platform": jax.default_backend(),
            }
