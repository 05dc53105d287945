"""Special tokens, such as <|im_end|>, which tokenizers read as text unless asked to."""

import re
from collections.abc import Callable
from typing import NamedTuple

from diffeq_former.data.tokenizers import (
    HFTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
)


class SpecialTokens(NamedTuple):
    """The special tokens of a tokenizer."""

    ids: dict[str, int]  # by their texts
    encode: Callable[[str], list[int]]  # the ids of a text with special tokens

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "SpecialTokens":
        """Return those that the tokenizer declares as special; of bytes, none."""
        if isinstance(tokenizer, HFTokenizer):
            return _of_hugging_face(tokenizer)
        ids = {}
        if isinstance(tokenizer, SentencePieceTokenizer):
            from sentencepiece import SentencePieceProcessor

            pieces = SentencePieceProcessor(model_proto=tokenizer.model)
            control = filter(pieces.is_control, range(tokenizer.vocab_size))
            ids = {pieces.id_to_piece(i): i for i in control}

        def encode(text: str) -> list[int]:
            parts = re.split(f"({_any_of(ids)})", text)
            encoded = [[ids[p]] if p in ids else tokenizer.encode(p) for p in parts]
            return [i for part in encoded for i in part]

        return cls(ids, encode)

    @property
    def pattern(self) -> str:
        """A regular expression that matches the longest of their texts."""
        return _any_of(self.ids)


def _of_hugging_face(tokenizer: HFTokenizer) -> SpecialTokens:
    from tokenizers import Tokenizer as Backend

    backend = Backend.from_buffer(tokenizer.model)
    backend.no_truncation()
    backend.no_padding()
    added = backend.get_added_tokens_decoder()
    ids = {token.content: i for i, token in added.items() if token.special}
    return SpecialTokens(
        ids, lambda text: backend.encode(text, add_special_tokens=False).ids
    )


def _any_of(texts: dict[str, int]) -> str:
    return "|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)"
