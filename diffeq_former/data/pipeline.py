"""The input pipeline: batches for training and validation, read by Grain.

The state of Grain's iterator is the number of batches it has returned, which is the
training step, so that the step in a checkpoint is all that is needed to resume. As
batches are formed before they are divided among hosts, the global batches do not depend
on the number of hosts. The sources of a mixture are shuffled and repeated one by one,
and then interleaved.

Shape suffixes: B batch, L length, L1 length + 1.
"""

import itertools
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from diffeq_former.data.dataset import Dataset
from diffeq_former.data.mixture import Data, Interleaving, MixedRows, check_enough
from diffeq_former.data.rows import NOTHING
from diffeq_former.errors import Interrupted, TransientError

Batch = dict[str, np.ndarray]

BATCHES_AHEAD = 8
_NUM_WARNINGS = 10  # a timeout is divided into so many intervals
_POLL_SECONDS = 0.2  # between two checks whether to stop


def train_batches(
    dataset: Data,
    *,
    batch_size: int,
    seed: int,
    number: int = 0,
    start_step: int = 0,
    timeout: float | None = None,
    positions: Sequence[int] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> "Batches":
    """Return an endless iterator over shuffled batches, starting at `start_step`.

    Every sequence of the train split of a source occurs once per epoch of that source,
    and each epoch has its own order.

    Args:
      dataset: A prepared dataset or a mixture.
      batch_size: The number of sequences in a global batch.
      seed: The seed of the orders, below 2**32.
      number: The number of the order among those of the seed.
      start_step: The number of the first batch; earlier ones are not read.
      timeout: Seconds after which a missing batch raises TransientError; None: never.
      positions: The positions in each global batch that this process reads; None: all.
      should_stop: Returns whether a stop is requested; polled while waiting for a
        batch, which then raises Interrupted.

    Returns:
      An iterator over batches {"inputs", "targets"}, int32 [B, L], where B is the
      number of `positions`. A target is -1 where there is nothing to predict.

    Raises:
      UserError: If a source has fewer training sequences than one batch takes.
    """
    import grain

    check_enough(dataset, batch_size)
    rows = MixedRows(dataset)
    own = slice(None) if positions is None else list(positions)

    def read(indices_B: np.ndarray) -> Batch:
        rows_BL1 = np.stack([rows[i] for i in indices_B[own]])
        return _inputs_and_targets(rows_BL1, dataset.eot)

    sources = [
        grain.MapDataset.range(*indices).shuffle(_derived(seed, number, i)).repeat()
        for i, indices in enumerate(rows.ranges())
    ]
    mixed = grain.MapDataset.select_from_datasets(
        sources, Interleaving(dataset.weights)
    )
    batches = mixed.batch(batch_size).map(read)
    one_by_one = batches.to_iter_dataset(grain.ReadOptions(0, 0))
    ahead = grain.experimental.ThreadPrefetchIterDataset(
        one_by_one, prefetch_buffer_size=BATCHES_AHEAD
    )
    iterator = iter(ahead)
    iterator.set_state({"next_index": start_step})
    return Batches(iterator, start_step, timeout, should_stop)


class Batches(Iterator):
    """An iterator over batches that does not wait for ever.

    Args:
      iterator: An endless iterator of Grain.
      step: The number of its next batch, for messages.
      timeout: Seconds to wait for a batch before giving up; None: for ever.
      should_stop: Returns whether a stop is requested; polled while waiting.

    Raises:
      TransientError: If a batch did not arrive in time.
      Interrupted: If a stop was requested while waiting for a batch.
    """

    def __init__(
        self,
        iterator: Iterator[Batch],
        step: int,
        timeout: float | None,
        should_stop: Callable[[], bool],
    ):
        self._iterator, self._step, self._should_stop = iterator, step, should_stop
        self._interval = float("inf") if timeout is None else timeout / _NUM_WARNINGS
        self._waiting = False

    def close(self) -> None:
        """End the thread that reads ahead, unless it hangs."""
        if not self._waiting:
            self._iterator.close()

    def __next__(self) -> Batch:
        arrived, self._waiting = queue.SimpleQueue(), True

        def read():
            try:
                arrived.put(next(self._iterator))
            except Exception as error:
                arrived.put(error)

        threading.Thread(target=read, daemon=True).start()
        self._step += 1
        batch = self._wait(arrived, f"the batch of step {self._step}")
        self._waiting = False
        if isinstance(batch, Exception):
            raise batch
        return batch

    def _wait(self, arrived: queue.SimpleQueue, what: str) -> Batch | Exception:
        """Return the next item; print a warning after each interval of waiting."""
        start = time.monotonic()
        for count in itertools.count(1):
            seconds = count * self._interval
            while (left := start + seconds - time.monotonic()) > 0:
                try:
                    return arrived.get(timeout=min(left, _POLL_SECONDS))
                except queue.Empty:
                    if self._should_stop():
                        raise Interrupted(f"stopped while waiting for {what}") from None
            if count == _NUM_WARNINGS:
                raise TransientError(
                    f"{what} did not arrive within {seconds:g} s (config.data.timeout)"
                )
            _warn(f"waiting for data: {what} has not arrived after {seconds:g} s")


def _warn(message: str) -> None:
    from tqdm import tqdm

    tqdm.write(message, file=sys.stderr)  # does not break a progress bar


def _derived(seed: int, number: int, source: int) -> int:
    """Return a seed for each number and source.

    They are not just added: Grain uses seed + epoch for later epochs.
    """
    if number == source == 0:
        return seed
    entropy = [seed, number, source] if source else [seed, number]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])


def validation_batches(
    dataset: Dataset,
    *,
    batch_size: int,
    split: str = "validation",
    positions: Sequence[int] | None = None,
) -> Iterator[Batch]:
    """Yield a whole split once, in order, in batches like those of `train_batches`.

    The last batch is padded with sequences that have nothing to predict.

    Args:
      dataset: A prepared dataset.
      batch_size: The number of sequences in a global batch.
      split: The name of the split.
      positions: The positions in each global batch that this process reads; None: all.
    """
    rows = dataset.rows(split)
    positions = range(batch_size) if positions is None else positions
    nothing_L1 = np.full(dataset.seq_len + 1, NOTHING, np.int32)
    num_batches = -(-len(rows) // batch_size)
    for number in range(num_batches):
        first = number * batch_size
        indices = [first + position for position in positions]
        rows_BL1 = [rows[i] if i < len(rows) else nothing_L1 for i in indices]
        yield _inputs_and_targets(np.stack(rows_BL1), dataset.eot)


def _inputs_and_targets(rows_BL1: np.ndarray, eot: int) -> Batch:
    inputs_BL = rows_BL1[:, :-1]
    return {
        "inputs": np.where(inputs_BL == NOTHING, np.int32(eot), inputs_BL),
        "targets": rows_BL1[:, 1:].copy(),
    }
