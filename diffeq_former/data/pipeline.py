"""Batches for training and validation. Legend: B batch, L length.

The training order is a function of the seed and the step alone, so its whole state is
the step: any number of worker processes or of shards sees the same global batches.

Grain shuffles, prefetches and runs the workers; its element is a batch. Its
ElasticIterator has the same state, but works row by row (half as fast on short rows),
hands batches over in shared memory that outlives a killed process, and has no hook for
starting workers, which would then outlive it too.
"""

import sys
import weakref
from collections.abc import Iterator, Sequence

import numpy as np

from diffeq_former.data.dataset import Dataset
from diffeq_former.data.processes import die_with_parent
from diffeq_former.data.rows import NOTHING, Rows
from diffeq_former.errors import UserError

Batch = dict[str, np.ndarray]

BATCHES_AHEAD = 8


class TrainBatches(Iterator[Batch]):
    """Endless batches. `close` ends the worker processes; so does dropping it."""

    def __init__(self, iterator):
        # The only reference: Grain's iterators cannot be collected at exit.
        self._held = [iterator]
        self.close = weakref.finalize(self, _close, self._held)

    def __next__(self) -> Batch:
        if not self._held:
            raise ValueError("these batches are closed")
        return next(self._held[0])


def _close(held: list) -> None:
    while held:
        held.pop().close()


def train_batches(
    dataset: Dataset,
    *,
    batch_size: int,
    seed: int,
    start_step: int = 0,
    num_workers: int = 0,
    places: Sequence[int] | None = None,
) -> TrainBatches:
    """Endless shuffled batches of the train split, from `start_step` on.

    Every row comes once an epoch, and each epoch has its own order.

    Args:
      dataset: A prepared dataset.
      batch_size: Rows of the global batch.
      seed: Of the order, below 2**32.
      start_step: Number of the first batch; found without reading those before.
      num_workers: Worker processes; 0 reads in a thread of this process.
      places: Which rows of each global batch this process reads; None: all.

    Returns:
      Batches {"inputs", "targets"}, int32 [B, L], B the number of places; a target is
      -1 where there is nothing to predict.
    """
    import grain

    rows = dataset.rows("train")
    if len(rows) < batch_size:
        raise UserError(
            f"dataset {dataset.path} has {len(rows)} training rows, fewer than a batch"
            f" of {batch_size}: use a smaller batch or more text"
        )
    order = grain.MapDataset.range(len(rows)).shuffle(seed).repeat()
    places = range(batch_size) if places is None else places
    batches = _BatchByStep(rows, order, batch_size, places, dataset.eot)
    source = grain.MapDataset.source(batches)[start_step:]
    return TrainBatches(iter(_read_ahead(source, num_workers)))


class _BatchByStep:
    """A process's share of each global batch, by step: Grain's source."""

    def __init__(self, rows: Rows, order, batch_size: int, places, eot: int):
        self._rows = rows
        self._order = order
        self._batch_size = batch_size
        self._places = places
        self._eot = eot

    def __len__(self) -> int:
        return sys.maxsize // self._batch_size

    def __getitem__(self, step: int) -> Batch:
        first = step * self._batch_size
        share = [self._order[first + place] for place in self._places]
        rows_BL1 = np.stack([self._rows[i] for i in share])
        return _inputs_and_targets(rows_BL1, self._eot)


def _read_ahead(source, num_workers: int):
    """Reads batches ahead, in a thread or in worker processes."""
    import grain
    from absl import flags
    from grain.experimental import DatasetOptions, WithOptionsIterDataset

    if num_workers == 0:
        return source.to_iter_dataset(grain.ReadOptions(1, BATCHES_AHEAD))
    if not flags.FLAGS.is_parsed():  # Grain asks its flags when it starts workers
        flags.FLAGS.mark_as_parsed()
    return WithOptionsIterDataset(
        source.to_iter_dataset(grain.ReadOptions(0, 0)),
        DatasetOptions(min_shm_size=sys.maxsize),  # pipes, no shared memory
    ).mp_prefetch(
        grain.MultiprocessingOptions(num_workers, per_worker_buffer_size=BATCHES_AHEAD),
        worker_init_fn=_start_worker,
    )


def _start_worker(worker_index: int, worker_count: int) -> None:
    die_with_parent()


def validation_batches(
    dataset: Dataset,
    *,
    batch_size: int,
    split: str = "validation",
    places: Sequence[int] | None = None,
    max_batches: int | None = None,
) -> Iterator[Batch]:
    """A whole split once, in order, in batches as those of `train_batches`.

    The last batch is filled up with rows that have nothing to predict.
    """
    rows = dataset.rows(split)
    places = range(batch_size) if places is None else places
    nothing_L1 = np.full(dataset.seq_len + 1, NOTHING, np.int32)
    num_batches = -(-len(rows) // batch_size)
    for number in range(num_batches)[:max_batches]:
        first = number * batch_size
        share = [first + place for place in places]
        rows_BL1 = [rows[i] if i < len(rows) else nothing_L1 for i in share]
        yield _inputs_and_targets(np.stack(rows_BL1), dataset.eot)


def _inputs_and_targets(rows_BL1: np.ndarray, eot: int) -> Batch:
    inputs_BL = rows_BL1[:, :-1]
    return {
        "inputs": np.where(inputs_BL == NOTHING, np.int32(eot), inputs_BL),
        "targets": rows_BL1[:, 1:].copy(),
    }
