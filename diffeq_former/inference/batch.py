"""Host side of batched decoding: device inputs from sequences, and new tokens back.

B sequences on the devices (the rows of the batch), C context tokens per prefill call,
R decoding rounds per call, W maximum number of tokens per round.
"""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from diffeq_former.inference import buckets
from diffeq_former.inference.sampling import Sampling

# Callback (row, its new tokens so far, whether it has ended) -> whether to end it now.
Watch = Callable[[int, list[int], bool], bool]


@dataclasses.dataclass
class Row:
    """A sequence that is being continued: its context, settings and new tokens."""

    context: list[int]  # at least one token
    max_new_tokens: int
    seed: int  # less than 2**32
    sampling: Sampling
    new: list[int] = dataclasses.field(default_factory=list)
    ended: bool = False

    def extend(self, tokens: list[int], eot: int) -> None:
        """Append tokens up to `eot` (excluded) or up to `max_new_tokens` in all."""
        end = tokens.index(eot) if eot in tokens else len(tokens)
        self.new = (self.new + tokens[:end])[: self.max_new_tokens]
        self.ended = end < len(tokens) or len(self.new) == self.max_new_tokens


def prefill_inputs(rows: list[Row], B: int, padding_position: int) -> Iterator[tuple]:
    """Yield the prefill inputs: tokens and positions, [B, C] each.

    They cover each context except its last token and are padded on the right. Padding
    has the position `padding_position`, which lies past the end of the cache.
    """
    longest = max(len(row.context) for row in rows) - 1
    C = buckets.chunk(longest)
    for start in range(0, longest, C):
        tokens_BC = np.zeros((B, C), np.int32)
        positions_BC = np.full((B, C), padding_position, np.int32)
        for i, row in enumerate(rows):
            part = row.context[:-1][start : start + C]
            tokens_BC[i, : len(part)] = part
            positions_BC[i, : len(part)] = np.arange(start, start + len(part))
        yield tokens_BC, positions_BC


def pad_rows(rows: list[Row], B: int) -> list[Row]:
    """Pad the batch to B rows with copies of the first row that have already ended."""
    return rows + [dataclasses.replace(rows[0], ended=True)] * (B - len(rows))


def decoding_state(rows: list[Row], B: int) -> tuple[np.ndarray, ...]:
    """Return the decoding state of a batch that is padded to B rows.

    Returns:
      The last two tokens [B, 2], the position of the last one, the number of tokens
      that may still follow, and the seed, [B] each.
    """
    padded = pad_rows(rows, B)
    known = [[*row.context, *row.new] for row in padded]
    remaining = [
        0 if row.ended else row.max_new_tokens - len(row.new) for row in padded
    ]
    return (
        np.array([[0, *tokens][-2:] for tokens in known], np.int32),
        np.array([len(tokens) - 1 for tokens in known], np.int32),
        np.array(remaining, np.int32),
        np.array([row.seed for row in padded], np.uint32),
    )


def append_tokens(
    rows: list[Row], new_RBW, counts_RB, eot: int, watch: Watch | None
) -> None:
    """Append the tokens of one decoding call to the rows that have not ended.

    Args:
      rows: The batch without padding; updated in place.
      new_RBW: Tokens of each round.
      counts_RB: Number of valid tokens in each round.
      eot: The end-of-text token.
      watch: Called for each row; the row ends if it returns True.
    """
    for i, row in enumerate(rows):
        if row.ended:
            continue
        rounds = zip(new_RBW[:, i].tolist(), counts_RB[:, i], strict=True)
        row.extend([t for new_W, count in rounds for t in new_W[:count]], eot)
        if watch is not None:
            row.ended |= watch(i, row.new, row.ended)
