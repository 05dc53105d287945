"""Token ids of prompts, which are at most as many as the model can read."""

from collections.abc import Callable

from diffeq_former.data.tokenizers import Tokenizer
from diffeq_former.errors import UserError

_UNCERTAIN = 16  # tokens at the end of a text that what follows may change


def prompt_ids(
    prompt: str | list[int], tokenizer: Tokenizer, max_len: int
) -> list[int]:
    """Return the token ids that the model reads for a prompt.

    They begin with `tokenizer.before`, which is prepended unless the prompt consists of
    token ids that begin with it.

    Raises:
      UserError: If it is neither a text nor token ids, or too long; a text is tokenised
        from its beginning until that is known.
    """
    before = tokenizer.before
    if isinstance(prompt, str):
        return encode_bounded(tokenizer.encode, prompt, before, max_len)
    if is_ids(prompt) and all(0 <= i < tokenizer.vocab_size for i in prompt):
        ids = without_before(prompt, before)
    else:
        raise UserError(f"expected strings or token ids below {tokenizer.vocab_size}")
    _check_length(before, ids, max_len)
    return [*before, *ids]


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
