"""A sequence that is being continued, on the host."""

import dataclasses
from collections.abc import Callable, Collection

from diffeq_former.inference.sampling import Sampling
from diffeq_former.inference.scores import TokenScore


@dataclasses.dataclass
class Sequence:
    """A sequence that is being continued: its context, settings and new tokens."""

    context: list[int]  # at least one token
    max_new_tokens: int
    seed: int  # less than 2**32
    sampling: Sampling
    # Called with this sequence after each of its chunks, and every few new tokens;
    # returns whether to end it now.
    watch: Callable[["Sequence"], bool] | None = None
    num_top: int | None = None  # most likely tokens to score; None: no scores
    new: list[int] = dataclasses.field(default_factory=list)
    # Scores of the context but its first token, of the new tokens, and of that which
    # ended the sequence.
    scores: list[TokenScore] = dataclasses.field(default_factory=list)
    num_read: int = 0  # context tokens in the cache
    ended: bool = False

    @property
    def unread(self) -> list[int]:
        """The context tokens to read before one is decoded: all but the last."""
        return self.context[self.num_read : -1]

    def extend(
        self, tokens: list[int], scores: list[TokenScore], ends: Collection[int]
    ) -> None:
        """Append tokens until one of `ends`, or until there are `max_new_tokens`.

        The score of a token that ends the sequence is among its scores.
        """
        tokens = tokens[: self.max_new_tokens - len(self.new)]
        end = next((i for i, t in enumerate(tokens) if t in ends), len(tokens))
        self.new += tokens[:end]
        self.scores += scores[: len(tokens[: end + 1])]
        self.ended = end < len(tokens) or len(self.new) == self.max_new_tokens

    def look(self) -> None:
        """Let `watch` see the sequence, and end it if that returns True."""
        if self.watch is not None:
            self.ended |= self.watch(self)
