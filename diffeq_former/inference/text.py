"""Generation from text to text. A tokenizer is one of `data.tokenizers`."""

import functools
from collections.abc import Callable, Sequence

from jax.sharding import Mesh

from diffeq_former.config import Config, ModelConfig
from diffeq_former.errors import UserError
from diffeq_former.inference.continuation import Continuation, check_stop
from diffeq_former.inference.generate import Generator

SAMPLE_TOKENS = 100
SAMPLE_TEMPERATURE = 0.8
SAMPLE_TOP_P = 0.95


def continue_texts(
    generator: Generator,
    tokenizer,
    params: dict,
    prompts: list[str],
    *,
    stop: Sequence[str] = (),
    show: Callable[[int, str], None] | None = None,
    **options,
) -> list[str]:
    """Each prompt and what follows it, up to the first stop string.

    Args:
      generator: of the model.
      tokenizer: the model's.
      params: of the model.
      prompts: texts.
      stop: strings before which a text ends.
      show: is called with a prompt's number and what is new of its text, at first the
        prompt, too.
      **options: as for `Generator.generate`.
    """
    check_stop(list(stop))
    encoded = [tokenizer.encode(prompt) for prompt in prompts]
    rows = [Continuation(tokenizer, ids, list(stop)) for ids in encoded]
    unseen = {i: row.prompt_text for i, row in enumerate(rows)}

    def watch(i: int, tokens: list[int], ended: bool) -> bool:
        new = rows[i].update(tokens, ended)
        if show is not None:
            show(i, unseen.pop(i, "") + new)
        return rows[i].stopped

    ends = {"eot": tokenizer.eot, "before": tokenizer.before}
    generator.generate(params, encoded, watch=watch, **ends, **options)
    return [row.prompt_text + row.text for row in rows]


def make_continue(
    config: ModelConfig, mesh: Mesh, tokenizer
) -> Callable[..., list[str]]:
    """`continue_texts` of a model: of parameters, prompts and options.

    Programs are kept between calls.
    """
    generator = Generator(config, mesh, tokenizer.vocab_size)
    return functools.partial(continue_texts, generator, tokenizer)


def make_sampler(config: Config, mesh: Mesh, tokenizer) -> Callable[[dict], str]:
    """`sample(params)`: `training.sample_prompt` and what the model writes after it.

    The draws are the same at every call, so that what changes is the model.

    Raises:
      UserError: if the prompt leaves no room for an answer.
    """
    prompt, max_len = config.training.sample_prompt, config.model.max_len
    length = len(tokenizer.encode(prompt))
    if length >= max_len:
        raise UserError(
            f"config.training.sample_prompt: expected fewer tokens than model.max_len "
            f"({max_len}), got {length}; shorten it"
        )
    continue_prompts = make_continue(config.model, mesh, tokenizer)
    options = {
        "max_new_tokens": min(SAMPLE_TOKENS, max_len - length),
        "temperature": SAMPLE_TEMPERATURE,
        "top_p": SAMPLE_TOP_P,
        "seed": config.seed,
    }
    return lambda params: continue_prompts(params, [prompt], **options)[0]
