"""Batches for training and validation. Legend: B batch, L length.

The training order is a function of the seed, its number among the seed's orders, and
the step alone, so its whole state are number and step: any number of worker processes
or of shards sees the same global batches.

Grain shuffles. Its worker processes are not used: a batch that one of them was killed
in the middle of is waited for without end.
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
    """Endless shuffled batches of the train split, from `start_step` on.

    Every row comes once an epoch, and each epoch has its own order.

    Args:
      dataset: A prepared dataset.
      batch_size: Rows of the global batch.
      seed: Of the orders, below 2**32.
      number: Which of the seed's orders.
      start_step: Number of the first batch; found without reading those before.
      num_workers: Worker processes; 0 reads in a thread of this process.
      timeout: Seconds after which a batch that did not come is a FaultError; None:
        never.
      places: Which rows of each global batch this process reads; None: all.
      should_stop: Asked while a batch does not come, which then is Interrupted.

    Returns:
      Batches {"inputs", "targets"}, int32 [B, L], B the number of places; a target is
      -1 where there is nothing to predict.
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
    """Raises UserError unless there are rows for a batch."""
    num_rows = dataset.split("train").rows
    if num_rows < batch_size:
        raise UserError(
            f"dataset {dataset.path} has {num_rows} training rows, fewer than a batch"
            f" of {batch_size}: use a smaller batch or more text"
        )


def _derived(seed: int, number: int) -> int:
    """A seed for each number; not its neighbours, which are those of later epochs."""
    if number == 0:
        return seed
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


class _BatchByStep:
    """A process's share of each global batch, by step. Endless."""

    def __init__(self, rows: Rows, order, batch_size: int, places, eot: int):
        self._rows = rows
        self._order = order
        self._batch_size = batch_size
        self._places = places
        self._eot = eot

    def __getitem__(self, step: int) -> Batch:
        first = step * self._batch_size
        share = [self._order[first + place] for place in self._places]
        rows_BL1 = np.stack([self._rows[i] for i in share])
        return _inputs_and_targets(rows_BL1, self._eot)


def validation_batches(
    dataset: Dataset,
    *,
    batch_size: int,
    split: str = "validation",
    places: Sequence[int] | None = None,
) -> Iterator[Batch]:
    """A whole split once, in order, in batches as those of `train_batches`.

    The last batch is filled up with rows that have nothing to predict.
    """
    rows = dataset.rows(split)
    places = range(batch_size) if places is None else places
    nothing_L1 = np.full(dataset.seq_len + 1, NOTHING, np.int32)
    num_batches = -(-len(rows) // batch_size)
    for number in range(num_batches):
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
