"""Token ids of prompts, which are at most as many as the model can read."""

import re
from collections.abc import Callable
from typing import NamedTuple

from diffeq_former.data.tokenizers import Tokenizer
from diffeq_former.errors import UserError
from diffeq_former.inference.special_tokens import SpecialTokens

_UNCERTAIN = 16  # tokens at the end of a text that what follows may change


class Prompt(NamedTuple):
    """Token ids that the model reads."""

    ids: list[int]
    num_added: int  # how many of the first ones are not in what was given


def read_prompt(
    prompt: str | list[int],
    tokenizer: Tokenizer,
    max_len: int,
    special_tokens: SpecialTokens | None = None,
) -> Prompt:
    """Return the token ids that the model reads for a prompt.

    They begin with `tokenizer.before`, which is prepended unless the prompt consists of
    token ids that begin with it, or of a text that begins with a special token.

    Args:
      prompt: A text or token ids.
      tokenizer: The model's tokenizer.
      max_len: The most tokens that the model reads.
      special_tokens: Those of the tokenizer, to read them in a text as tokens; None: as
        text.

    Raises:
      UserError: If it is neither a text nor token ids, or too long; a text is tokenised
        from its beginning until that is known.
    """
    before, encode = tokenizer.before, tokenizer.encode
    if isinstance(prompt, str):
        if special_tokens is not None:
            encode = special_tokens.encode
            before = [] if re.match(special_tokens.pattern, prompt) else before
        ids = encode_bounded(encode, prompt, before, max_len)
        return Prompt(ids, len(before))
    if not is_ids(prompt) or not all(0 <= i < tokenizer.vocab_size for i in prompt):
        raise UserError(f"expected strings or token ids below {tokenizer.vocab_size}")
    ids = without_before(prompt, before)
    _check_length(before, ids, max_len)
    return Prompt([*before, *ids], len(before) + len(ids) - len(prompt))


def encode_bounded(
    encode: Callable[[str], list[int]], text: str, before: list[int], max_len: int
) -> list[int]:
    """Return `before` and the token ids of a text.

    Raises:
      UserError: If they are more than `max_len`; the text is tokenised from its
        beginning until that is known.
    """
    end = 4 * max_len  # characters
    while end < len(text):
        # The last tokens of a text that is cut off may be others.
        known = encode(text[:end])[:-_UNCERTAIN]
        _check_length(before, known, max_len, "at least ")
        end *= 4
    ids = encode(text)
    _check_length(before, ids, max_len)
    return [*before, *ids]


def _check_length(
    before: list[int], ids: list[int], max_len: int, at_least: str = ""
) -> None:
    length = len(before) + len(ids)
    if length > max_len:
        part = f", {len(before)} of them before the text," if before else ""
        raise UserError(
            f"{at_least}{length} tokens{part} are more than the model's max_len of"
            f" {max_len}; shorten it to at most {max_len} tokens"
        )


def without_before(ids: list[int], before: list[int]) -> list[int]:
    """Return token ids without those before a text, if they begin with them."""
    start = len(before)
    return ids[start:] if ids[:start] == before else ids


def is_ids(value) -> bool:
    return (
        isinstance(value, list) and bool(value) and all(type(i) is int for i in value)
    )
