"""Batches for training and validation. Legend: B batch, L length.

The training order is a function of the seed and the step alone, so its whole state is
the step: any number of worker processes or of shards sees the same global batches.
"""

import functools
from collections.abc import Iterator

import numpy as np

from diffeq_former.data.dataset import Dataset
from diffeq_former.data.rows import NOTHING
from diffeq_former.errors import UserError

Batch = dict[str, np.ndarray]

BATCHES_AHEAD = 8


def train_batches(
    dataset: Dataset,
    *,
    batch_size: int,
    seed: int,
    start_step: int = 0,
    num_workers: int = 0,
    shard_index: int = 0,
    shard_count: int = 1,
) -> Iterator[Batch]:
    """Endless shuffled batches of the train split, from `start_step` on.

    Every row comes once an epoch, and each epoch has its own order. Close the iterator
    (`close()`) to end its worker processes.

    Args:
      dataset: A prepared dataset.
      batch_size: Rows of the global batch; this process gets its share.
      seed: Of the order, below 2**32.
      start_step: Number of the first batch; found without reading those before.
      num_workers: Worker processes; 0 reads in a thread of this process.
      shard_index: Which share of each batch this process reads.
      shard_count: How many processes share a batch.

    Returns:
      Batches {"inputs", "targets"}, int32 [B, L], B = batch_size // shard_count; a
      target is -1 where there is nothing to predict.
    """
    import grain
    from grain.experimental import ElasticIterator
    from grain.sharding import ShardOptions

    rows = dataset.rows("train")
    _check_shares(batch_size, shard_count)
    if len(rows) < batch_size:
        raise UserError(
            f"dataset {dataset.path} has {len(rows)} training rows, fewer than a batch"
            f" of {batch_size}: use a smaller batch or more text"
        )
    batches = ElasticIterator(
        grain.MapDataset.source(rows).shuffle(seed).repeat(),
        batch_size,
        ShardOptions(shard_index, shard_count),
        **_reading(num_workers),
    )
    iterator = iter(
        batches.map(functools.partial(_inputs_and_targets, eot=dataset.eot))
    )
    iterator.set_state({"global_next_index": start_step * batch_size})
    return iterator


def validation_batches(
    dataset: Dataset,
    *,
    batch_size: int,
    split: str = "validation",
    shard_index: int = 0,
    shard_count: int = 1,
    max_batches: int | None = None,
) -> Iterator[Batch]:
    """A whole split once, in order, in batches as those of `train_batches`.

    The last batch is filled up with rows that have nothing to predict.
    """
    _check_shares(batch_size, shard_count)
    rows = dataset.rows(split)
    nothing_L1 = np.full(dataset.seq_len + 1, NOTHING, np.int32)
    num_batches = -(-len(rows) // batch_size)
    for number in range(num_batches)[:max_batches]:
        first = number * batch_size
        share = range(first + shard_index, first + batch_size, shard_count)
        rows_BL1 = [rows[i] if i < len(rows) else nothing_L1 for i in share]
        yield _inputs_and_targets(np.stack(rows_BL1), dataset.eot)


def _inputs_and_targets(rows_BL1: np.ndarray, eot: int) -> Batch:
    """Splits rows. Copies, as rows from a worker lie in shared memory."""
    inputs_BL = rows_BL1[:, :-1]
    return {
        "inputs": np.where(inputs_BL == NOTHING, np.int32(eot), inputs_BL),
        "targets": rows_BL1[:, 1:].copy(),
    }


def _check_shares(batch_size: int, shard_count: int) -> None:
    if batch_size < 1 or batch_size % shard_count:
        raise UserError(
            f"batch_size {batch_size} cannot be shared by {shard_count} processes: use"
            f" a multiple of {shard_count}"
        )


def _reading(num_workers: int) -> dict:
    """Reads ahead in one thread, or in worker processes.

    Not in both: what a worker's thread has read ahead is shared memory, and is lost
    when the worker ends.
    """
    import grain
    from absl import flags

    if num_workers == 0:
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=BATCHES_AHEAD)
        return {"read_options": options}
    if not flags.FLAGS.is_parsed():  # Grain asks its flags when it starts workers
        flags.FLAGS.mark_as_parsed()
    return {
        "read_options": grain.ReadOptions(num_threads=0, prefetch_buffer_size=0),
        "multiprocessing_options": grain.MultiprocessingOptions(
            num_workers, per_worker_buffer_size=BATCHES_AHEAD
        ),
    }
