"""Acceptance rate and throughput of self-speculative decoding."""

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
    """Yield one record for plain decoding and one per draft, timed alternately.

    The time includes generating the weight table and the prefill, but no compilation.

    Args:
      config: The model's config.
      params: The model's parameters.
      mesh: Mesh over which the parameters are sharded.
      tokenizer: The model's tokenizer.
      prompts: Prompts of one batch.
      drafts: Drafts to compare with plain decoding.
      rounds: Number of timed rounds.
      **options: Options of `Generator.generate`.

    Raises:
      UserError: If the model does not support a draft, or an option is invalid.
    """
    generators = {
        draft: Generator(config, mesh, tokenizer.vocab_size, draft)
        for draft in (None, *drafts)
    }
    encoded = [tokenizer.encode(prompt) for prompt in prompts]
    options |= {"before": tokenizer.before, "ends": tokenizer.ends}
    runs = {
        draft: functools.partial(generator.generate, params, encoded, **options)
        for draft, generator in generators.items()
    }
    seconds = alternate(runs, rounds)
    rates = {
        # The counts are of all rounds, including the warm-up round that is not timed.
        draft: [generator.counts.new / (rounds + 1) / s for s in seconds[draft]]
        for draft, generator in generators.items()
    }
    for draft, generator in generators.items():
        drafted = generator.counts.drafted
        yield {
            "draft_steps": draft.num_steps if draft else 0,
            "draft_tokens": draft.num_tokens if draft else 0,
            "acceptance": generator.counts.accepted / drafted if drafted else None,
            "tokens_per_second": spread(rates[draft]),
            "speed_up": ratios(rates[draft], rates[None]),
        }
