import itertools
import threading
import time

import numpy as np
import pytest

from diffeq_former.data.pipeline import train_batches, validation_batches
from diffeq_former.data.rows import Rows
from diffeq_former.errors import Interrupted, TransientError, UserError


def take(dataset, count, *, batch_size=8, seed=3, **options):
    batches = train_batches(dataset, batch_size=batch_size, seed=seed, **options)
    taken = list(itertools.islice(batches, count))
    batches.close()
    return taken


def same(left, right):
    return len(left) == len(right) and all(
        (a[key] == b[key]).all()
        for a, b in zip(left, right, strict=True)
        for key in ("inputs", "targets")
    )


def rows_of(batches):
    """The rows of batches as bytes, to compare and count."""
    return [
        np.concatenate([row[:1], targets]).tobytes()
        for batch in batches
        for row, targets in zip(batch["inputs"], batch["targets"], strict=True)
    ]


@pytest.fixture
def epoch(prepared):
    """Batches of 8 that are needed to see every row."""
    return -(-len(prepared.rows("train")) // 8)


def test_shapes(prepared):
    (batch,) = take(prepared, 1)
    assert set(batch) == {"inputs", "targets"}
    for array in batch.values():
        assert array.shape == (8, 16) and array.dtype == np.int32
        assert array.flags.c_contiguous
    assert (batch["inputs"][:, 1:] == batch["targets"][:, :-1]).all()


def test_every_row_once_an_epoch_in_an_order_of_its_own(prepared):
    num_rows = len(prepared.rows("train"))
    eot = prepared.eot
    batches = take(prepared, 3 * num_rows // 4, batch_size=4)
    seen = rows_of(batches)
    assert len(seen) >= 2 * num_rows
    first, second = seen[:num_rows], seen[num_rows : 2 * num_rows]
    on_disk = [
        np.where(row == -1, row, row).tobytes() for row in prepared.rows("train")
    ]
    assert sorted(first) == sorted(on_disk) == sorted(second)
    assert first != second and first != on_disk
    assert all((b["inputs"] >= 0).all() and (b["inputs"] <= eot).all() for b in batches)


def test_seed_decides_the_order(prepared):
    assert same(take(prepared, 5), take(prepared, 5))
    assert not same(take(prepared, 5), take(prepared, 5, seed=4))


def test_a_seed_has_many_orders(prepared, epoch):
    """None begins as another goes on: all their epochs differ."""
    num_rows = len(prepared.rows("train"))
    seen = [rows_of(take(prepared, 2 * epoch, number=number)) for number in range(3)]
    epochs = [rows[k * num_rows :][:num_rows] for rows in seen for k in (0, 1)]
    assert len(set(map(tuple, epochs))) == len(epochs) == 6
    assert len({tuple(sorted(rows)) for rows in epochs}) == 1
    assert same(take(prepared, 3, number=1), take(prepared, 3, number=1))


def test_resumed_twice_equals_uninterrupted_over_an_epoch(prepared, epoch):
    whole = take(prepared, epoch + 6)
    for first, second in (
        (0, 1),
        (3, epoch - 1),
        (epoch, epoch + 1),
        (epoch - 2, epoch + 3),
    ):
        parts = take(prepared, first)
        parts += take(prepared, second - first, start_step=first)
        parts += take(prepared, epoch + 6 - second, start_step=second)
        assert same(parts, whole)


def test_starts_far_ahead_at_once(prepared):
    (far,) = take(prepared, 1, start_step=10**6)
    num_rows = len(prepared.rows("train"))
    assert not same([far], take(prepared, 1, start_step=10**6 % num_rows))


@pytest.mark.parametrize("shard_count", [2, 4])
def test_shards_share_the_global_batch(prepared, epoch, shard_count):
    whole = take(prepared, 4, start_step=epoch - 2)
    shares = [
        take(prepared, 4, start_step=epoch - 2, positions=range(i, 8, shard_count))
        for i in range(shard_count)
    ]
    for step, batch in enumerate(whole):
        for key in batch:
            assert shares[0][step][key].shape == (8 // shard_count, 16)
            together = np.stack([share[step][key] for share in shares], axis=1)
            assert (together.reshape(8, 16) == batch[key]).all()


def test_validation_is_the_whole_split_in_order(prepared):
    rows_RL1 = np.stack(list(prepared.rows("validation")))
    assert len(rows_RL1) % 8, "the last batch should be partial"
    batches = list(validation_batches(prepared, batch_size=8))
    targets = np.concatenate([b["targets"] for b in batches])
    assert targets.shape[0] == -(-len(rows_RL1) // 8) * 8
    assert (targets[: len(rows_RL1)] == rows_RL1[:, 1:]).all()
    assert (targets[len(rows_RL1) :] == -1).all()
    counted = sum((b["targets"] != -1).sum() for b in batches)
    assert counted == prepared.split("validation").tokens - 1


def test_validation_in_shards(prepared):
    whole = list(validation_batches(prepared, batch_size=8))
    shares = [
        list(validation_batches(prepared, batch_size=8, positions=range(i, 8, 4)))
        for i in range(4)
    ]
    assert {len(share) for share in shares} == {len(whole)}
    for step, batch in enumerate(whole):
        together = np.stack([share[step]["targets"] for share in shares], axis=1)
        assert (together.reshape(8, 16) == batch["targets"]).all()


def test_wrong_batch(prepared):
    with pytest.raises(UserError, match="fewer than a batch of 100000"):
        take(prepared, 1, batch_size=100_000)


@pytest.fixture
def stuck(monkeypatch):
    """A file system that does not answer until this event is set."""
    answers = threading.Event()
    monkeypatch.setattr(Rows, "_read", lambda *_: answers.wait() and bytes(34))
    yield answers
    answers.set()


def test_a_stall_is_reported_and_ends(prepared, stuck, capsys):
    batches = train_batches(prepared, batch_size=8, seed=3, start_step=4, timeout=1)
    start = time.monotonic()
    message = r"^the batch of step 5 did not arrive within 1 s \(config.data.timeout\)$"
    with pytest.raises(TransientError, match=message):
        next(batches)
    assert 0.9 < time.monotonic() - start < 10
    words = "waiting for data: the batch of step 5 has not arrived after"
    assert capsys.readouterr().err.splitlines() == [
        f"{words} 0.{tenths} s" for tenths in range(1, 10)
    ]
    batches.close()
    assert time.monotonic() - start < 15


@pytest.mark.parametrize("timeout", [None, 100])
def test_a_stall_can_be_interrupted(prepared, stuck, timeout):
    stop, start = threading.Event(), time.monotonic()
    batches = train_batches(
        prepared, batch_size=8, seed=3, timeout=timeout, should_stop=stop.is_set
    )
    threading.Timer(0.3, stop.set).start()
    with pytest.raises(Interrupted, match="^stopped while waiting for the batch of st"):
        next(batches)
    assert 0.29 < time.monotonic() - start < 10
    batches.close()


def test_a_stall_that_ends_loses_nothing(prepared, capsys, monkeypatch):
    whole, read = take(prepared, 3), Rows._read
    slow = time.monotonic() + 1.3
    monkeypatch.setattr(
        Rows,
        "_read",
        lambda *args: time.sleep(max(0, slow - time.monotonic())) or read(*args),
    )
    assert same(take(prepared, 3, timeout=10), whole)
    assert "the batch of step 1 has not arrived after 1 s" in capsys.readouterr().err


def test_a_batch_that_is_ready_comes_also_after_a_stop(prepared):
    assert same(take(prepared, 3, should_stop=lambda: True), take(prepared, 3))


def test_an_error_of_reading_arrives_as_it_is(prepared, monkeypatch):
    def damaged(*_):
        raise RuntimeError("train-00000 is damaged")

    monkeypatch.setattr(Rows, "_read", damaged)
    with pytest.raises(RuntimeError, match="^train-00000 is damaged"):
        take(prepared, 1)


def test_closing_ends_the_reading_thread(prepared):
    before = threading.active_count()
    for _ in range(3):
        take(prepared, 2)
    assert threading.active_count() <= before
