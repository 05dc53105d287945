"""Worker processes: the same batches, and none of them left behind."""

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from diffeq_former.data.pipeline import train_batches

KILLED = """
import multiprocessing, os, signal, sys
from diffeq_former.data import dataset, pipeline
if __name__ == "__main__":
    batches = pipeline.train_batches(dataset.load(sys.argv[1]), batch_size=8, seed=0,
                                     num_workers=2)
    next(batches)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    if sys.argv[2] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("num_workers", [1, 2])
def test_same_batches_for_any_number_of_workers(prepared, num_workers):
    last = len(prepared.rows("train")) // 8
    for start in (0, last - 3):
        alone = train_batches(prepared, batch_size=8, seed=3, start_step=start)
        helped = train_batches(
            prepared, batch_size=8, seed=3, start_step=start, num_workers=num_workers
        )
        for a, b in itertools.islice(zip(alone, helped, strict=True), 8):
            assert (a["inputs"] == b["inputs"]).all()
            assert (a["targets"] == b["targets"]).all()
        alone.close()
        helped.close()
    assert not multiprocessing.active_children()


def test_dead_worker_is_an_error(prepared):
    batches = train_batches(prepared, batch_size=8, seed=3, num_workers=1)
    next(batches)
    (worker,) = multiprocessing.active_children()
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="terminated unexpectedly"):
        for _ in range(10_000):
            next(batches)
    batches.close()


@pytest.mark.parametrize("how", ["kill", "exit"])
def test_workers_end_with_their_process(prepared_path, tmp_path, environment, how):
    script = tmp_path / "train.py"
    script.write_text(KILLED)
    result = subprocess.run(
        [sys.executable, script, prepared_path, how],
        env=environment,
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
