"""Text-to-text generation. Tokenizers are those of `data.tokenizers`."""

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
    show: Callable[[int, str], None] | None = None,
    **options,
) -> list[str]:
    """Return each prompt with its continuation, up to the first stop string.

    Args:
      generator: Generator of the model.
      tokenizer: Tokenizer of the model.
      params: Parameters of the model.
      prompts: The texts to continue.
      show: Called with the index of a prompt and its new text, which at first includes
        the prompt.
      **options: `stop` and other options of `continue_ids`.
    """
    encoded = [tokenizer.encode(prompt) for prompt in prompts]
    prompt_texts = [tokenizer.decode(ids) for ids in encoded]
    not_shown = dict(enumerate(prompt_texts))

    def show_all(i: int, new: str) -> None:
        show(i, not_shown.pop(i, "") + new)

    new_texts = continue_ids(
        generator,
        tokenizer,
        params,
        encoded,
        before=tokenizer.before,
        show=show and show_all,
        **options,
    )
    return [a + b for a, b in zip(prompt_texts, new_texts, strict=True)]


def continue_ids(
    generator: Generator,
    tokenizer,
    params: dict,
    prompts: list[list[int]],
    *,
    before: list[int],
    stop: Sequence[str] = (),
    show: Callable[[int, str], None] | None = None,
    **options,
) -> list[str]:
    """Return the text that follows each prompt, up to the first stop string.

    Args:
      generator: Generator of the model.
      tokenizer: Tokenizer of the model.
      params: Parameters of the model.
      prompts: Token ids.
      before: Token ids to prepend to each prompt.
      stop: Stop strings; a text ends before the first of them.
      show: Called with the index of a prompt and its new text.
      **options: Options of `Generator.generate`.
    """
    check_stop(list(stop))
    continuations = [Continuation(tokenizer, ids, list(stop)) for ids in prompts]

    def watch(i: int, tokens: list[int], ended: bool) -> bool:
        new = continuations[i].update(tokens, ended)
        if show is not None:
            show(i, new)
        return continuations[i].stopped

    special = {"before": before, "ends": tokenizer.ends}
    generator.generate(params, prompts, watch=watch, **special, **options)
    return [c.text for c in continuations]


def make_continue(
    config: ModelConfig, mesh: Mesh, tokenizer
) -> Callable[..., list[str]]:
    """Return `continue_texts` for a model: a function of (params, prompts, **options).

    The function reuses its compiled programs between calls.
    """
    generator = Generator(config, mesh, tokenizer.vocab_size)
    return functools.partial(continue_texts, generator, tokenizer)


def make_sampler(config: Config, mesh: Mesh, tokenizer) -> Callable[[dict], str]:
    """Return `sample(params)`, which continues `config.training.sample_prompt`.

    Every call uses the same random keys, so that samples differ only by the model.

    Raises:
      UserError: If the prompt leaves no room for a continuation.
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
