"""Host side of batched decoding: device inputs from sequences, and new tokens back.

B sequences on the devices, C context tokens per prefill call, R decoding rounds per
call, W maximum number of tokens per round.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterator

import numpy as np

from diffeq_former.inference import buckets
from diffeq_former.inference.sampling import Sampling

# Callback (index, new tokens so far, whether it has ended) -> whether to end it now.
Watch = Callable[[int, list[int], bool], bool]


@dataclasses.dataclass
class Sequence:
    """A sequence that is being continued: its context, settings and new tokens."""

    context: list[int]  # at least one token
    max_new_tokens: int
    seed: int  # less than 2**32
    sampling: Sampling
    new: list[int] = dataclasses.field(default_factory=list)
    ended: bool = False

    def extend(self, tokens: list[int], ends: Collection[int]) -> None:
        """Append tokens until one of `ends`, or until there are `max_new_tokens`."""
        end = next((i for i, t in enumerate(tokens) if t in ends), len(tokens))
        self.new = (self.new + tokens[:end])[: self.max_new_tokens]
        self.ended = end < len(tokens) or len(self.new) == self.max_new_tokens


def prefill_inputs(
    sequences: list[Sequence], B: int, padding_position: int
) -> Iterator[tuple]:
    """Yield the prefill inputs: tokens and positions, [B, C] each.

    They cover each context except its last token and are padded on the right. Padding
    has the position `padding_position`, which lies past the end of the cache. Contexts
    of sequences that end meanwhile are not read any further.
    """
    C, start = buckets.chunk(_longest(sequences)), 0
    while start < _longest(sequences):
        tokens_BC = np.zeros((B, C), np.int32)
        positions_BC = np.full((B, C), padding_position, np.int32)
        for i, sequence in enumerate(sequences):
            part = sequence.context[:-1][start : start + C]
            tokens_BC[i, : len(part)] = part
            positions_BC[i, : len(part)] = np.arange(start, start + len(part))
        yield tokens_BC, positions_BC
        start += C


def _longest(sequences: list[Sequence]) -> int:
    """Return the most tokens to read before one is decoded, of any running sequence."""
    return max((len(x.context) - 1 for x in sequences if not x.ended), default=0)


def update_ended(sequences: list[Sequence], watch: Watch) -> None:
    """End the sequences for which `watch` returns True; it sees those still running."""
    for i, sequence in enumerate(sequences):
        if not sequence.ended:
            sequence.ended = watch(i, sequence.new, False)


def pad_batch(sequences: list[Sequence], B: int) -> list[Sequence]:
    """Pad the batch to B sequences with copies of the first one that have ended."""
    return sequences + [dataclasses.replace(sequences[0], ended=True)] * (
        B - len(sequences)
    )


def decoding_state(sequences: list[Sequence], B: int) -> tuple[np.ndarray, ...]:
    """Return the decoding state of a batch that is padded to B sequences.

    Returns:
      The last two tokens [B, 2], the position of the last one, the number of tokens
      that may still follow, and the seed, [B] each.
    """
    padded = pad_batch(sequences, B)
    known = [[*x.context, *x.new] for x in padded]
    remaining = [0 if x.ended else x.max_new_tokens - len(x.new) for x in padded]
    return (
        np.array([[0, *tokens][-2:] for tokens in known], np.int32),
        np.array([len(tokens) - 1 for tokens in known], np.int32),
        np.array(remaining, np.int32),
        np.array([x.seed for x in padded], np.uint32),
    )


def append_tokens(
    sequences: list[Sequence],
    new_RBW,
    counts_RB,
    ends: Collection[int],
    watch: Watch | None,
) -> None:
    """Append the tokens of one decoding call to the sequences that have not ended.

    Args:
      sequences: The batch without padding; updated in place.
      new_RBW: Tokens of each round.
      counts_RB: Number of valid tokens in each round.
      ends: The tokens that end a sequence.
      watch: Called for each sequence; the sequence ends if it returns True.
    """
    for i, sequence in enumerate(sequences):
        if sequence.ended:
            continue
        rounds = zip(new_RBW[:, i].tolist(), counts_RB[:, i], strict=True)
        sequence.extend([t for new_W, count in rounds for t in new_W[:count]], ends)
        if watch is not None:
            sequence.ended |= watch(i, sequence.new, sequence.ended)
