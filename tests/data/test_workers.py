"""Worker processes: the same batches, and none of them left behind."""

import itertools
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest

from diffeq_former.data import read_ahead
from diffeq_former.data.pipeline import train_batches
from diffeq_former.data.read_ahead import ReadAhead
from diffeq_former.errors import FaultError, Interrupted

KILLED = """
import multiprocessing, os, signal, sys
from diffeq_former.data.read_ahead import ReadAhead
if __name__ == "__main__":
    items = ReadAhead(range(10**9), start=0, num_workers=2, num_ahead=8, timeout=None,
                      what=str)
    assert next(items) == 0
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_same_batches_for_any_number_of_workers(prepared):
    last = len(prepared.rows("train")) // 8
    for num_workers, start in ((1, 0), (2, last - 3)):
        alone = train_batches(prepared, batch_size=8, seed=3, start_step=start)
        helped = train_batches(
            prepared, batch_size=8, seed=3, start_step=start, num_workers=num_workers
        )
        for a, b in itertools.islice(zip(alone, helped, strict=True), 8):
            assert (a["inputs"] == b["inputs"]).all()
            assert (a["targets"] == b["targets"]).all()
        assert len(multiprocessing.active_children()) == num_workers
        alone.close()
        helped.close()
    assert not multiprocessing.active_children()


class Big:
    """Items that fit in no pipe, and for which memory is asked of the system."""

    def __getitem__(self, number):
        return number, bytes(40_000_000)


class Stuck:
    """Items of a file system that does not answer."""

    def __getitem__(self, number):
        threading.Event().wait()


def read(items, timeout=60, num_workers=1, **options):
    what = "item {}".format
    ahead = {"num_ahead": 2, "timeout": timeout, "what": what} | options
    return ReadAhead(items, start=5, num_workers=num_workers, **ahead)


def worker():
    [process] = multiprocessing.active_children()
    return process


def until_it_fails(items) -> None:
    for _ in items:
        pass


def test_a_killed_worker_is_named_at_once():
    """Also in the middle of an item, where it waits for room in the pipe."""
    items = read(Big())
    next(items)
    pid, start = worker().pid, time.monotonic()
    os.kill(pid, signal.SIGKILL)
    words = rf"^a data worker \(process {pid}\) was killed by SIGKILL$"
    with pytest.raises(FaultError, match=words):
        until_it_fails(items)
    assert time.monotonic() - start < 10
    with pytest.raises(ValueError, match="closed"):
        next(items)


def test_a_worker_without_memory_is_named(capfd):
    items = read(Big())
    next(items)
    pid = worker().pid
    resource.prlimit(pid, resource.RLIMIT_AS, (2**20, 2**20))
    words = rf"^a data worker \(process {pid}\) ended with exit code 1, see above$"
    with pytest.raises(FaultError, match=words):
        until_it_fails(items)
    assert "MemoryError" in capfd.readouterr().err


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stall_is_reported_and_ends(num_workers, capsys, monkeypatch):
    """No such file system is at hand for the thread; the worker is stopped."""
    monkeypatch.setattr(read_ahead, "_SECONDS_TO_STOP", 0.1)
    items = read(Stuck(), timeout=1, num_workers=num_workers)
    if num_workers:
        os.kill(worker().pid, signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(FaultError, match=r"^item 5 did not arrive within 1 s \(conf"):
        next(items)
    assert 0.9 < time.monotonic() - start < 10
    words = "waiting for data: item 5 has not arrived after"
    said = capsys.readouterr().err.splitlines()
    assert said == [f"{words} 0.{tenths} s" for tenths in range(1, 10)]
    items.close()
    assert time.monotonic() - start < 15
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("timeout", [None, 100])
def test_a_stall_can_be_interrupted(timeout, monkeypatch):
    monkeypatch.setattr(read_ahead, "_SECONDS_TO_STOP", 0.1)
    stop, start = threading.Event(), time.monotonic()
    items = read(Stuck(), timeout, num_workers=0, should_stop=stop.is_set)
    threading.Timer(0.3, stop.set).start()
    with pytest.raises(Interrupted, match="^stopped while waiting for item 5$"):
        next(items)
    assert 0.29 < time.monotonic() - start < 10
    items.close()


def test_an_item_that_is_ready_comes_also_after_a_stop():
    items = read(range(100), num_workers=0, should_stop=lambda: True)
    while items._ready.empty():
        time.sleep(0.01)
    assert next(items) == 5
    items.close()


def test_a_stall_that_ends_loses_nothing(capsys):
    items = read(range(100), timeout=10)
    os.kill(worker().pid, signal.SIGSTOP)
    threading.Timer(1.3, os.kill, (worker().pid, signal.SIGCONT)).start()
    assert [next(items) for _ in range(3)] == [5, 6, 7]
    assert "item 5 has not arrived after 1 s" in capsys.readouterr().err
    items.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_signals_to_the_whole_group_leave_workers_alone(number):
    """From their first moment on: what trains needs their batches to stop in order."""
    items = read(range(100))
    os.kill(worker().pid, number)
    assert [next(items) for _ in range(3)] == [5, 6, 7]
    items.close()


@pytest.mark.parametrize("how", ["kill", "exit"])
def test_workers_end_with_their_process(tmp_path, how):
    script = tmp_path / "train.py"
    script.write_text(KILLED)
    result = subprocess.run(
        [sys.executable, script, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if how == "exit" else subprocess.DEVNULL,
        text=True,
        timeout=60,
    )
    workers = [int(pid) for pid in result.stdout.split()]
    assert len(workers) == 2
    if how == "exit":
        assert (result.returncode, result.stderr) == (0, "")
    deadline = time.monotonic() + 10
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_running, workers))


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
