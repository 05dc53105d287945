"""Generation from text to text. A tokenizer is one of `data.tokenizers`."""

from collections.abc import Callable

from jax.sharding import Mesh

from diffeq_former.config import Config, ModelConfig
from diffeq_former.errors import UserError
from diffeq_former.generation.generate import Generator

SAMPLE_TOKENS = 100
SAMPLE_TEMPERATURE = 0.8
SAMPLE_TOP_P = 0.95


def make_continue(
    config: ModelConfig, mesh: Mesh, tokenizer
) -> Callable[..., list[str]]:
    """`continue_texts(params, prompts, **options)`: each prompt and what follows it.

    Options as for `Generator.generate`. Programs are kept between calls.
    """
    generator = Generator(config, mesh, tokenizer.vocab_size)

    def continue_texts(params: dict, prompts: list[str], **options) -> list[str]:
        encoded = [tokenizer.encode(prompt) for prompt in prompts]
        new = generator.generate(params, encoded, eot=tokenizer.eot, **options)
        return [tokenizer.decode(a + b) for a, b in zip(encoded, new, strict=True)]

    return continue_texts


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
    continue_texts = make_continue(config.model, mesh, tokenizer)
    options = {
        "max_new_tokens": min(SAMPLE_TOKENS, max_len - length),
        "temperature": SAMPLE_TEMPERATURE,
        "top_p": SAMPLE_TOP_P,
        "seed": config.seed,
    }
    return lambda params: continue_texts(params, [prompt], **options)[0]
