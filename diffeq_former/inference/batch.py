"""Rows of a batch outside of the devices: what goes to them, and what comes back.

B rows on the devices, C tokens of a context that are read at once, R rounds of decoding
in one call, W most tokens of a round.
"""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from diffeq_former.inference import buckets
from diffeq_former.inference.sampling import Sampling

# watch(row, its new tokens so far, whether it has ended) -> whether it shall end
Watch = Callable[[int, list[int], bool], bool]


@dataclasses.dataclass
class Row:
    """One context, what is asked to follow it, and what came so far."""

    context: list[int]  # one token or more
    max_new_tokens: int
    seed: int  # below 2**32
    sampling: Sampling
    new: list[int] = dataclasses.field(default_factory=list)
    ended: bool = False

    def extend(self, tokens: list[int], eot: int) -> None:
        """Adds tokens up to the end of the text, or of what may follow."""
        end = tokens.index(eot) if eot in tokens else len(tokens)
        self.new = (self.new + tokens[:end])[: self.max_new_tokens]
        self.ended = end < len(tokens) or len(self.new) == self.max_new_tokens


def chunks(rows: list[Row], B: int, nowhere: int) -> Iterator[tuple]:
    """Tokens and positions [B, C] of all but the last token of each context.

    They are padded on the right; padding stands at `nowhere`, past the cache's end.
    """
    longest = max(len(row.context) for row in rows) - 1
    C = buckets.chunk(longest)
    for start in range(0, longest, C):
        tokens_BC = np.zeros((B, C), np.int32)
        positions_BC = np.full((B, C), nowhere, np.int32)
        for i, row in enumerate(rows):
            part = row.context[:-1][start : start + C]
            tokens_BC[i, : len(part)] = part
            positions_BC[i, : len(part)] = np.arange(start, start + len(part))
        yield tokens_BC, positions_BC


def filled(rows: list[Row], B: int) -> list[Row]:
    return rows + [dataclasses.replace(rows[0], ended=True)] * (B - len(rows))


def standing(rows: list[Row], B: int) -> tuple[np.ndarray, ...]:
    """The last two tokens [B, 2], positions, numbers of tokens left, and seeds [B]."""
    padded = filled(rows, B)
    known = [[*row.context, *row.new] for row in padded]
    left = [0 if row.ended else row.max_new_tokens - len(row.new) for row in padded]
    return (
        np.array([[0, *tokens][-2:] for tokens in known], np.int32),
        np.array([len(tokens) - 1 for tokens in known], np.int32),
        np.array(left, np.int32),
        np.array([row.seed for row in padded], np.uint32),
    )


def take(rows: list[Row], new_RBW, counts_RB, eot: int, watch: Watch | None) -> None:
    for i, row in enumerate(rows):
        if row.ended:
            continue
        rounds = zip(new_RBW[:, i].tolist(), counts_RB[:, i], strict=True)
        row.extend([t for new_W, count in rounds for t in new_W[:count]], eot)
        if watch is not None:
            row.ended |= watch(i, row.new, row.ended)
