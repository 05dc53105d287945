"""What drafting brings: acceptance, and tokens a second with and without."""

import functools
from collections.abc import Iterator

from jax.sharding import Mesh

from diffeq_former.benchmarks.timing import alternate, ratios, spread
from diffeq_former.config import ModelConfig
from diffeq_former.inference.generate import Generator
from diffeq_former.inference.speculative import Draft


def benchmark(
    config: ModelConfig,
    params: dict,
    mesh: Mesh,
    tokenizer,
    prompts: list[str],
    drafts: list[Draft],
    rounds: int,
    **options,
) -> Iterator[dict]:
    """A line for plain decoding, and for each draft; all are timed side by side.

    Compilation is not timed; the table, and reading the prompts, are.

    Args:
      config: of the model.
      params: of the model.
      mesh: of the parameters' devices.
      tokenizer: the model's.
      prompts: that are continued together.
      drafts: what to compare with plain decoding.
      rounds: how often each is timed.
      **options: as for `Generator.generate`.

    Raises:
      UserError: if the model cannot draft so, or for a wrong option.
    """
    generators = {
        draft: Generator(config, mesh, tokenizer.vocab_size, draft)
        for draft in (None, *drafts)
    }
    encoded = [tokenizer.encode(prompt) for prompt in prompts]
    options |= {"eot": tokenizer.eot, "before": tokenizer.before}
    runs = {
        draft: functools.partial(generator.generate, params, encoded, **options)
        for draft, generator in generators.items()
    }
    seconds = alternate(runs, rounds)
    rates = {
        # Of all rounds, also the one that is not timed.
        draft: [generator.num_new / (rounds + 1) / s for s in seconds[draft]]
        for draft, generator in generators.items()
    }
    for draft, generator in generators.items():
        drafted = generator.num_drafted
        yield {
            "draft_steps": draft.num_steps if draft else 0,
            "draft_tokens": draft.num_tokens if draft else 0,
            "acceptance": generator.num_accepted / drafted if drafted else None,
            "tokens_per_second": spread(rates[draft]),
            "speed_up": ratios(rates[draft], rates[None]),
        }
