"""The input pipeline: batches for training and validation.

A training batch is a function of the seed, the number of the shuffled order among those
of the seed, and the step. So the pipeline has no other state, and the global batches do
not depend on the number of worker processes or hosts.

Grain shuffles. Its worker processes are not used, as it waits for ever for a batch if
the worker is killed while producing it.

Shape suffixes: B batch, L length, L1 length + 1.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from diffeq_former.data.dataset import Dataset
from diffeq_former.data.read_ahead import ReadAhead
from diffeq_former.data.rows import NOTHING, Rows
from diffeq_former.errors import UserError

Batch = dict[str, np.ndarray]

BATCHES_AHEAD = 8


def train_batches(
    dataset: Dataset,
    *,
    batch_size: int,
    seed: int,
    number: int = 0,
    start_step: int = 0,
    num_workers: int = 0,
    timeout: float | None = None,
    places: Sequence[int] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> ReadAhead:
    """Return an endless iterator over shuffled batches, starting at `start_step`.

    Every sequence of the train split occurs once per epoch, and each epoch has its own
    order.

    Args:
      dataset: A prepared dataset.
      batch_size: The number of sequences in a global batch.
      seed: The seed of the orders, below 2**32.
      number: The number of the order among those of the seed.
      start_step: The number of the first batch; earlier ones are not read.
      num_workers: The number of worker processes; 0: read in a thread of this process.
      timeout: Seconds after which a missing batch raises FaultError; None: never.
      places: The sequences of each global batch that this process reads; None: all.
      should_stop: Returns whether a stop is requested; polled while waiting for a
        batch, which then raises Interrupted.

    Returns:
      An iterator over batches {"inputs", "targets"}, int32 [B, L], where B is the
      number of `places`. A target is -1 where there is nothing to predict.

    Raises:
      UserError: If the train split has fewer sequences than a batch.
    """
    import grain

    check_enough(dataset, batch_size)
    rows = dataset.rows("train")
    order = grain.MapDataset.range(len(rows)).shuffle(_derived(seed, number)).repeat()
    places = range(batch_size) if places is None else places
    batches = _BatchByStep(rows, order, batch_size, places, dataset.eot)
    return ReadAhead(
        batches,
        start=start_step,
        num_workers=num_workers,
        num_ahead=BATCHES_AHEAD,
        timeout=timeout,
        what=lambda step: f"the batch of step {step + 1}",
        should_stop=should_stop,
    )


def check_enough(dataset: Dataset, batch_size: int) -> None:
    """Raise UserError if the train split has fewer sequences than a batch."""
    num_rows = dataset.split("train").rows
    if num_rows < batch_size:
        raise UserError(
            f"dataset {dataset.path} has {num_rows} training sequences, fewer than a"
            f" batch of {batch_size}: use a smaller batch or more text"
        )


def _derived(seed: int, number: int) -> int:
    """Return a seed for each number.

    The number is not just added: Grain uses seed + epoch for later epochs.
    """
    if number == 0:
        return seed
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


class _BatchByStep:
    """The local part of each global batch, indexed by step. Endless; picklable."""

    def __init__(self, rows: Rows, order, batch_size: int, places, eot: int):
        self._rows = rows
        self._order = order
        self._batch_size = batch_size
        self._places = places
        self._eot = eot

    def __getitem__(self, step: int) -> Batch:
        first = step * self._batch_size
        indices = [self._order[first + place] for place in self._places]
        rows_BL1 = np.stack([self._rows[i] for i in indices])
        return _inputs_and_targets(rows_BL1, self._eot)


def validation_batches(
    dataset: Dataset,
    *,
    batch_size: int,
    split: str = "validation",
    places: Sequence[int] | None = None,
) -> Iterator[Batch]:
    """Yield a whole split once, in order, in batches like those of `train_batches`.

    The last batch is padded with sequences that have nothing to predict.

    Args:
      dataset: A prepared dataset.
      batch_size: The number of sequences in a global batch.
      split: The name of the split.
      places: The sequences of each global batch that this process reads; None: all.
    """
    rows = dataset.rows(split)
    places = range(batch_size) if places is None else places
    nothing_L1 = np.full(dataset.seq_len + 1, NOTHING, np.int32)
    num_batches = -(-len(rows) // batch_size)
    for number in range(num_batches):
        first = number * batch_size
        indices = [first + place for place in places]
        rows_BL1 = [rows[i] if i < len(rows) else nothing_L1 for i in indices]
        yield _inputs_and_targets(np.stack(rows_BL1), dataset.eot)


def _inputs_and_targets(rows_BL1: np.ndarray, eot: int) -> Batch:
    inputs_BL = rows_BL1[:, :-1]
    return {
        "inputs": np.where(inputs_BL == NOTHING, np.int32(eot), inputs_BL),
        "targets": rows_BL1[:, 1:].copy(),
    }
