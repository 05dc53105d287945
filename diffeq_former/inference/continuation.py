"""Incremental detokenisation: whole characters only, up to a stop string."""

import os

from diffeq_former.errors import UserError

_UNKNOWN = "\N{REPLACEMENT CHARACTER}"  # an incomplete character decodes to this


def check_stop(stop: list[str]) -> None:
    """Raise UserError for an empty stop string, which would match everywhere."""
    if "" in stop:
        raise UserError("stop: expected strings of one character or more, got ''")


class Continuation:
    """The text that continues one prompt.

    Args:
      tokenizer: One of `data.tokenizers`.
      prompt: The token ids of the prompt.
      stop: Stop strings; the text ends before the first occurrence of any of them.
    """

    def __init__(self, tokenizer, prompt: list[int], stop: list[str]):
        self._tokenizer, self._prompt, self._stop = tokenizer, prompt, stop
        self.prompt_text = tokenizer.decode(prompt)
        self.text = ""  # all text that `update` has returned so far
        self.stopped = False  # whether a stop string was found
        self.num_tokens = 0  # up to and including the stop string

    def update(self, tokens: list[int], last: bool) -> str:
        """Return the new text that further tokens cannot change.

        Text at the end that may be an incomplete character, or the beginning of a stop
        string, is held back until it is certain.

        Args:
          tokens: All tokens after the prompt so far.
          last: Whether no more tokens will follow.
        """
        if not tokens and not last:
            return ""
        text, before = self._decode(tokens), self.num_tokens
        self.num_tokens = len(tokens)
        end = self._first_stop(text)
        if end is not None:
            text, self.stopped = text[:end], True
            self.num_tokens = next(
                n
                for n in range(before, len(tokens) + 1)
                if self._first_stop(self._decode(tokens[:n])) is not None
            )
        elif not last:
            text = self._certain(text)
        new = text[len(self.text) :]
        self.text += new
        return new

    def _decode(self, tokens: list[int]) -> str:
        """Return the text after the prompt, perhaps with an incomplete character."""
        text = self._tokenizer.decode(self._prompt + tokens)
        return text[len(os.path.commonprefix([text, self.prompt_text])) :]

    def _first_stop(self, text: str) -> int | None:
        """Return the index of the earliest stop string in the text."""
        indices = [text.find(stop) for stop in self._stop]
        return min((i for i in indices if i >= 0), default=None)

    def _certain(self, text: str) -> str:
        """Strip incomplete characters and the longest prefix of a stop string."""
        text = text.rstrip(_UNKNOWN)
        held_back = 0
        for stop in self._stop:
            prefixes = (n for n in range(1, len(stop)) if text.endswith(stop[:n]))
            held_back = max([held_back, *prefixes])
        return text[: len(text) - held_back]
