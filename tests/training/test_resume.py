"""Runs that end before their time are continued to one that does not, bit for bit."""

import dataclasses
import json
import random
import re
import signal
import time

import jax
import numpy as np
import pytest
from cases import mesh_of
from prepared import prepare_words
from runs import Command, data_workers, tiny_config

from diffeq_former.training import checkpoint, state

NUM_STEPS = 48
KILLS = 10


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    dataset = prepare_words(tmp_path_factory.mktemp("data"), seq_len=16)
    return tiny_config(dataset, num_steps=NUM_STEPS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def uninterrupted(config, folder):
    result = Command(folder, config).run(folder / "uninterrupted")
    assert result.returncode == 0, result.stderr
    return folder / "uninterrupted"


def lines(workdir) -> list[dict]:
    path = workdir / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [
        json.loads(line) for line in text.splitlines(keepends=True) if line[-1:] == "\n"
    ]


def last_step(workdir) -> int:
    return max((line["step"] for line in lines(workdir)), default=0)


def last_state(workdir, config):
    abstract = state.abstract(config, mesh_of())
    return checkpoint.restore_latest(workdir / "checkpoints", abstract)[0]


def run_and_kill(command, workdir, draw: random.Random) -> None:
    """Kills a run anywhere in its first seconds, or a few steps on."""
    target = last_step(workdir) + draw.randint(1, 5)
    deadline = draw.uniform(0, 6) if draw.random() < 0.3 else 120
    with command.start(workdir) as process:
        start = time.monotonic()
        while last_step(workdir) < target and time.monotonic() - start < deadline:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.005)
        time.sleep(draw.uniform(0, 0.1))
        process.kill()
        process.communicate()


def assert_ends_like(uninterrupted, command, workdir, config) -> None:
    result = command.run(workdir)
    assert result.returncode == 0, result.stderr
    final = last_state(workdir, config)
    assert int(final.step) == NUM_STEPS
    expected = last_state(uninterrupted, config)
    jax.tree.map(np.testing.assert_array_equal, final, expected)
    losses = [
        [(x["step"], x.get("loss"), x.get("validation/loss")) for x in lines(path)]
        for path in (workdir, uninterrupted)
    ]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_killed_ten_times(config, folder, uninterrupted):
    command, workdir, draw = Command(folder, config), folder / "killed", random.Random()
    for _ in range(KILLS):
        run_and_kill(command, workdir, draw)
    assert_ends_like(uninterrupted, command, workdir, config)


@pytest.mark.slow
def test_killed_with_worker_processes(config, folder, uninterrupted):
    data = dataclasses.replace(config.data, num_workers=2)
    with_workers = dataclasses.replace(config, data=data)
    command, workdir = Command(folder, with_workers), folder / "workers"
    run_and_kill(command, workdir, random.Random())
    assert_ends_like(uninterrupted, command, workdir, config)


def run_with_faulty_worker(command, workdir, number: signal.Signals):
    """Sends a signal to one of two workers before it has read a batch."""
    with command.start(workdir) as process:
        while not (workers := data_workers(process.pid)):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.002)
        workers[0].send_signal(number)
        _, err = process.communicate()
    *_, last = err.splitlines()
    return process.returncode, last, err


@pytest.mark.slow
def test_faulty_data_workers(config, folder, uninterrupted):
    """Each ends the run soon, with a line; nothing is lost."""
    data = dataclasses.replace(config.data, num_workers=2, timeout=15.0)
    command = Command(folder, dataclasses.replace(config, data=data))
    workdir = folder / "faults"
    code, last, _ = run_with_faulty_worker(command, workdir, signal.SIGKILL)
    assert code == 1
    assert re.fullmatch(
        r"error: a data worker \(process \d+\) was killed by SIGKILL: no checkpoint was"
        " saved yet; the same command continues",
        last,
    )
    with command.start(workdir) as process:
        while not checkpoint.saved_steps(workdir / "checkpoints"):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.002)
        process.kill()
        process.communicate()
    [*_, step] = checkpoint.saved_steps(workdir / "checkpoints")
    code, last, err = run_with_faulty_worker(command, workdir, signal.SIGSTOP)
    assert code == 1
    assert last == (
        f"error: the batch of step {step + 1} did not come for 15 s"
        f" (config.data.timeout): the last good checkpoint, of step {step}, stands; the"
        " same command continues"
    )
    words = f"waiting for data: the batch of step {step + 1} has not come for"
    assert err.count(words) == 9
    assert_ends_like(uninterrupted, command, workdir, config)


@pytest.mark.slow
def test_stopped_while_a_data_worker_does_not_answer(config, folder, uninterrupted):
    """Of two workers the second is stopped, which makes the batch of step 2."""
    data = dataclasses.replace(config.data, num_workers=2, timeout=20.0)
    command = Command(folder, dataclasses.replace(config, data=data))
    workdir = folder / "stalled"
    with command.start(workdir) as process:
        while len(workers := data_workers(process.pid)) < 2:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.002)
        max(workers, key=lambda worker: worker.pid).send_signal(signal.SIGSTOP)
        words = "waiting for data: the batch of step 2 has not come for 2 s\n"
        assert any(line.endswith(words) for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        asked = time.monotonic()
        _, err = process.communicate()
    assert time.monotonic() - asked < 15
    assert process.returncode == 75, err
    assert checkpoint.saved_steps(workdir / "checkpoints") == [1]
    assert f"stopped by SIGTERM: {workdir} holds all up to step 1; the same" in err
    assert_ends_like(uninterrupted, command, workdir, config)


# The wall clock jumps by an hour, forth or back, every half a second.
JUMPING_CLOCK = """
import runpy, sys, time
wall = time.time
time.time = lambda: wall() + 3600 * (int(time.monotonic() * 2) % 2)
sys.argv[0] = "main"
runpy.run_module("diffeq_former.main", run_name="__main__")
"""


@pytest.mark.slow
def test_a_clock_that_jumps(config, folder, uninterrupted):
    """Orbax may give up where it jumps in the few moments in which Orbax waits."""
    command, workdir = Command(folder, config), folder / "clock"
    start = time.monotonic()
    for _ in range(20):
        result = command.run(workdir, script=JUMPING_CLOCK)
        code, *_, last = result.returncode, *result.stderr.splitlines()
        assert code == 0 or "or the clock jumped meanwhile: " in last, result.stderr
        if code == 0:
            break
    elapsed = time.monotonic() - start
    assert_ends_like(uninterrupted, command, workdir, config)
    trained = [line for line in lines(workdir) if "loss" in line]
    seconds = [line["seconds_per_step"] for line in trained]
    assert len(seconds) == NUM_STEPS
    assert 0 < min(seconds) and sum(seconds) < elapsed
    for line in trained:
        assert 0 <= line["data_wait_seconds"] <= line["seconds_per_step"]
        tokens = line["tokens_per_second"] * line["seconds_per_step"]
        assert tokens == pytest.approx(8 * 16)
