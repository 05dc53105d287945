"""The text of a row as its tokens come: whole characters, up to a stop string."""

import os

from diffeq_former.errors import UserError

_UNKNOWN = "\N{REPLACEMENT CHARACTER}"  # also what stands for half a character


def check_stop(stop: list[str]) -> None:
    """Raises UserError for an empty stop string, which would be found everywhere."""
    if "" in stop:
        raise UserError("stop: expected strings of one character or more, got ''")


class Continuation:
    """What follows one prompt.

    Args:
      tokenizer: one of `data.tokenizers`.
      prompt: its token ids.
      stop: the text ends before the first of these in it.
    """

    def __init__(self, tokenizer, prompt: list[int], stop: list[str]):
        self._tokenizer, self._prompt, self._stop = tokenizer, prompt, stop
        self.prompt_text = tokenizer.decode(prompt)
        self.text = ""  # that was given out
        self.stopped = False  # by a stop string
        self.num_tokens = 0  # up to it

    def update(self, tokens: list[int], last: bool) -> str:
        """What is new of the text and will not change.

        Kept back is what may be half a character, or the beginning of a stop string.

        Args:
          tokens: all that follow the prompt, so far.
          last: whether no more will come.
        """
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
        """What the tokens add to the prompt's text; it may end in half a character."""
        text = self._tokenizer.decode(self._prompt + tokens)
        return text[len(os.path.commonprefix([text, self.prompt_text])) :]

    def _first_stop(self, text: str) -> int | None:
        places = [text.find(stop) for stop in self._stop]
        return min((place for place in places if place >= 0), default=None)

    def _certain(self, text: str) -> str:
        text = text.rstrip(_UNKNOWN)
        kept = 0
        for stop in self._stop:
            parts = (n for n in range(1, len(stop)) if text.endswith(stop[:n]))
            kept = max([kept, *parts])
        return text[: len(text) - kept]
