"""Continuous batching: sequences join and leave a running batch between its steps.

Each sequence occupies a slot of a cache with N slots of S positions. A step reads one
chunk of the contexts that are unread, and then decodes a few tokens of all others.

B sequences in a call, C context tokens per prefill call, R decoding rounds per call, W
maximum number of tokens per round.
"""

import dataclasses
import itertools
from collections.abc import Collection

import jax
import numpy as np

from diffeq_former.inference import buckets
from diffeq_former.inference.programs import Programs, View, num_rounds
from diffeq_former.inference.sampling import NO_TOKEN, Rule, Sampling
from diffeq_former.inference.scores import Scores, TokenScore
from diffeq_former.inference.sequence import Sequence


@dataclasses.dataclass
class Counts:
    """Numbers of tokens, summed over all batches of a generator."""

    new: int = 0
    drafted: int = 0
    accepted: int = 0


class Batch:
    """A running batch.

    Args:
      programs: The programs of the model.
      weights: The weights for them.
      ends: The tokens that end a sequence.
      counts: Where tokens are counted.
      num_slots: The most sequences at a time; rounded up to a bucket.
      length: Positions of the cache, the most tokens of a sequence without its last.
      shards: Shards of a batch on the mesh.
      num_drafted: Tokens that are drafted in each round.
      most_read: Tokens that a prefill call reads of several sequences together; of one
        it can be more. Calls are then on parts of the cache. None: all of it.
    """

    def __init__(
        self,
        programs: Programs,
        weights: tuple,
        ends: Collection[int],
        counts: Counts,
        *,
        num_slots: int,
        length: int,
        shards: int,
        num_drafted: int,
        most_read: int | None,
    ):
        self._programs, self._weights, self._ends = programs, weights, set(ends)
        self._ends_E = np.array(sorted(self._ends), np.int32)
        self._counts, self._length, self._shards = counts, length, shards
        self._reach = num_rounds(num_drafted) * (num_drafted + 1)
        self._most_read = most_read
        self._num_slots = buckets.batch_size(num_slots, shards)
        self._slots: dict[int, Sequence] = {}  # in the order in which they joined
        self._caches: tuple | None = None

    def reset(self) -> None:
        """Forget all sequences and the cache, for instance after an error."""
        self._slots, self._caches = {}, None

    @property
    def sequences(self) -> list[Sequence]:
        """The sequences that have not ended."""
        return list(self._slots.values())

    @property
    def has_room(self) -> bool:
        """Whether a sequence can join."""
        return len(self._slots) < self._num_slots

    def join(self, sequence: Sequence) -> None:
        """Give a sequence a slot until it has ended."""
        slot = next(i for i in range(self._num_slots) if i not in self._slots)
        self._slots[slot] = sequence

    def step(self) -> None:
        """Read a chunk of contexts, if any is unread, and decode a few tokens."""
        self._allocate()
        for work in (self._read, self._decode):
            for sequence in work():
                sequence.look()
            running = self._slots.items()
            self._slots = {slot: x for slot, x in running if not x.ended}

    def warm_up(self) -> None:
        """Compile the programs of all sizes that `step` can call."""
        self._allocate()
        lengths = range(1, self._length + 1)
        numbers = range(1, self._num_slots + 1)
        reads = {
            (self._num_reading(n, C), C, self._view_length(k + C))
            for C in set(map(buckets.chunk, lengths))
            for n in (1, self._num_slots)
            for k in range(self._length)
        }
        for B, C, S in sorted(reads):
            self._call_read([], B, C, S)
        sizes = set(map(self._num_decoding, numbers))
        for B, S in itertools.product(sizes, set(map(self._view_length, lengths))):
            self._call_decode([], B, S)
        jax.block_until_ready(self._caches)

    def _allocate(self) -> None:
        if self._caches is None:
            self._caches = self._programs.empty(self._num_slots, self._length)

    def _read(self) -> list[Sequence]:
        """Read a chunk of the first sequences that are not read yet; return them."""
        unread = [slot for slot, x in self._slots.items() if x.unread]
        if not unread:
            return []
        C = buckets.chunk(len(self._slots[unread[0]].unread))
        B = self._num_reading(len(unread), C)
        needed = max(self._slots[slot].num_read for slot in unread[:B]) + C
        S = self._view_length(needed)
        rows, scores = self._call_read(unread[:B], B, C, S)
        jax.block_until_ready(self._caches)  # do not read ahead of `watch`
        for i, x in enumerate(rows):
            if x is not None:
                start, count = x.num_read, len(x.unread[:C])
                following = x.context[start + 1 : start + 1 + count]
                x.scores += _scores_of(x, scores, (i,), following)
                x.num_read += count
        return [x for x in rows if x is not None]

    def _num_reading(self, num_unread: int, C: int) -> int:
        """Return how many sequences one call reads, each of which has a chunk of C."""
        if self._most_read is None:
            return self._num_slots
        if num_unread <= self._shards:
            return self._shards
        most = buckets.batch_size(max(1, self._most_read // C), self._shards)
        return min(most, self._num_slots)

    def _num_decoding(self, num_sequences: int) -> int:
        """Return of how many sequences one call decodes tokens."""
        if self._most_read is None:
            return self._num_slots
        return buckets.batch_size(num_sequences, self._shards)

    def _view_length(self, needed: int) -> int:
        """Return of how many positions a call sees the cache."""
        if self._most_read is None:
            return self._length
        return buckets.view(needed, self._length)

    def _call_read(self, slots: list[int], B: int, C: int, S: int):
        """Read chunks of C tokens; return the B sequences and their scores."""
        view, rows = self._view(slots, B, S)
        tokens_BC, next_BC = np.zeros((2, B, C), np.int32)
        positions_BC = np.full((B, C), self._length, np.int32)  # that of padding
        for i, x in enumerate(rows):
            part = x.unread[:C] if x else []
            start, count = (x.num_read if x else 0), len(part)
            tokens_BC[i, :count] = part
            positions_BC[i, :count] = np.arange(start, start + count)
            next_BC[i, :count] = x.context[start + 1 :][:count] if x else []
        self._caches, scores = self._programs.read(
            self._weights,
            self._caches,
            view,
            tokens_BC,
            positions_BC,
            next_BC,
            _any_scored(rows),
        )
        return rows, scores

    def _decode(self) -> list[Sequence]:
        """Decode a few tokens of the sequences that are read; return them."""
        read = [slot for slot, x in self._slots.items() if not x.unread]
        if not read:
            return []
        known = (self._slots[slot] for slot in read)
        needed = max(len(x.context) + len(x.new) for x in known) + self._reach
        B, S = self._num_decoding(len(read)), self._view_length(needed)
        rows, tokens = self._call_decode(read, B, S)
        new_RBW, counts_RB = np.asarray(tokens.new_BW), np.asarray(tokens.counts_B)
        # Each round of a sequence drafts W - 1 tokens and adds one of the full model.
        rounds = np.count_nonzero(counts_RB)
        self._counts.drafted += int(rounds * (new_RBW.shape[-1] - 1))
        self._counts.accepted += int(counts_RB.sum() - rounds)
        for i, x in enumerate(rows):
            if x is None:
                continue
            new, scores, before = [], [], len(x.new)
            for r, count in enumerate(counts_RB[:, i]):
                added = new_RBW[r, i, :count].tolist()
                scores += _scores_of(x, tokens.scores, (r, i), added)
                new += added
            x.extend(new, scores, self._ends)
            self._counts.new += len(x.new) - before
        return [x for x in rows if x is not None]

    def _call_decode(self, slots: list[int], B: int, S: int):
        """Decode; return the B sequences and their tokens, with a leading axis R."""
        view, rows = self._view(slots, B, S)
        known = [[0, *x.context[-2:], *x.new[-2:]] if x else [0, 0] for x in rows]
        last = [len(x.context) + len(x.new) - 1 if x else self._length for x in rows]
        left = [x.max_new_tokens - len(x.new) if x else 0 for x in rows]
        new_BS = np.full((B, S), NO_TOKEN, np.int32)
        for new_S, x in zip(new_BS, rows, strict=True):
            if x and x.sampling.has_penalty:
                new_S[len(x.context) :][: len(x.new)] = x.new
        greedy = Sampling(temperature=0.0)
        self._caches, tokens = self._programs.decode(
            self._weights,
            self._caches,
            view,
            np.array([tokens[-2:] for tokens in known], np.int32),
            np.array(last, np.int32),
            np.array(left, np.int32),
            np.array([x.seed if x else 0 for x in rows], np.uint32),
            new_BS,
            self._ends_E,
            Rule.of([x.sampling if x else greedy for x in rows]),
            _any_scored(rows),
        )
        return rows, tokens

    def _view(self, slots: list[int], B: int, S: int):
        """Return the view of these slots and others that hold no sequence, B in all.

        Returns:
          The view, and the sequence in each of its slots; None: ignore the slot.
        """
        N = self._num_slots
        if B == N:
            rows = [self._slots[i] if i in slots else None for i in range(N)]
            return View(None, S), rows
        padding = B - len(slots)
        slots_B = np.array([*slots, *[N] * padding], np.int32)
        return View(slots_B, S), [self._slots[i] for i in slots] + [None] * padding


def _any_scored(rows: list[Sequence | None]) -> np.bool_:
    return np.bool_(any(x is not None and x.num_top is not None for x in rows))


def _scores_of(
    x: Sequence, scores: Scores, index: tuple[int, ...], tokens: list[int]
) -> list[TokenScore]:
    """Return the scores of tokens, the first ones at an index; none if x needs none."""
    if x.num_top is None:
        return []
    given = (np.asarray(array)[index][: len(tokens)].tolist() for array in scores)
    return [
        TokenScore(token, log_p, list(zip(ids, top, strict=True))[: x.num_top])
        for token, log_p, ids, top in zip(tokens, *given, strict=True)
    ]
