"""Processes that end before their time are resumed bit for bit.

Many more kills: soak.py.
"""

import dataclasses
import re
import signal
import time

import pytest
from kills import differences, lines, run_and_kill
from runs import NUM_STEPS, Command, data_workers

from diffeq_former.training import checkpoint

WORKERS = "--config.data.num_workers=2"


@pytest.fixture(scope="module")
def command(config, tmp_path_factory):
    """Without samples, which change nothing else."""
    training = dataclasses.replace(config.training, sample_every=0)
    config = dataclasses.replace(config, training=training)
    return Command(tmp_path_factory.mktemp("command"), config)


@pytest.fixture
def workdir(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def assert_ends_like_uninterrupted(command, workdir, config, uninterrupted):
    def run_to_the_end():
        result = command.run(workdir)
        assert result.returncode == 0, result.stderr
        assert checkpoint.saved_steps(workdir / "checkpoints")[-1] == NUM_STEPS
        assert differences(workdir, uninterrupted, config) == []

    return run_to_the_end


def test_killed_three_times(command, workdir, assert_ends_like_uninterrupted):
    """With a checkpoint, somewhere in its start, and with a data worker."""
    run_and_kill(command, workdir, early=False)
    run_and_kill(command, workdir, early=True)
    run_and_kill(command, workdir, "--config.data.num_workers=1", early=False)
    assert_ends_like_uninterrupted()


def started_workers(process) -> list:
    while len(workers := data_workers(process.pid)) < 2:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.002)
    return sorted(workers, key=lambda worker: worker.pid)


@pytest.mark.slow
def test_faulty_data_workers(command, workdir, assert_ends_like_uninterrupted):
    """Killed, stopped until SIGTERM, and stopped until the timeout.

    Each ends the run soon, with a line; nothing is lost.
    """
    with command.start(workdir, WORKERS) as process:
        started_workers(process)[0].kill()
        _, err = process.communicate()
    assert process.returncode == 1
    assert re.fullmatch(
        r"error: a data worker \(process \d+\) was killed by SIGKILL: no checkpoint was"
        " saved yet; the same command continues",
        err.splitlines()[-1],
    )

    # The second of two workers makes the batch of step 2.
    with command.start(workdir, WORKERS, "--config.data.timeout=20") as process:
        started_workers(process)[1].send_signal(signal.SIGSTOP)
        words = "waiting for data: the batch of step 2 has not arrived after 2 s\n"
        assert any(line.endswith(words) for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        asked = time.monotonic()
        _, err = process.communicate()
    assert time.monotonic() - asked < 15
    assert process.returncode == 75, err
    assert checkpoint.saved_steps(workdir / "checkpoints") == [1]
    assert f"stopped by SIGTERM: {workdir} is saved up to step 1; the same" in err

    with command.start(workdir, WORKERS, "--config.data.timeout=5") as process:
        started_workers(process)[0].send_signal(signal.SIGSTOP)
        _, err = process.communicate()
    assert process.returncode == 1
    assert err.splitlines()[-1] == (
        "error: the batch of step 2 did not arrive within 5 s (config.data.timeout):"
        " the last good checkpoint is that of step 1; the same command continues"
    )
    words = "waiting for data: the batch of step 2 has not arrived after"
    assert err.count(words) == 9
    assert_ends_like_uninterrupted()


# The wall clock jumps by an hour, forth or back, every half a second.
JUMPING_CLOCK = """
import runpy, sys, time
wall = time.time
time.time = lambda: wall() + 3600 * (int(time.monotonic() * 2) % 2)
sys.argv[0] = "main"
runpy.run_module("diffeq_former.main", run_name="__main__")
"""


@pytest.mark.slow
def test_a_clock_that_jumps(command, workdir, assert_ends_like_uninterrupted):
    """Orbax may give up where it jumps in the few moments in which Orbax waits."""
    start = time.monotonic()
    for _ in range(20):
        result = command.run_process(workdir, script=JUMPING_CLOCK)
        code, *_, last = result.returncode, *result.stderr.splitlines()
        assert code == 0 or "or the clock jumped meanwhile: " in last, result.stderr
        if code == 0:
            break
    elapsed = time.monotonic() - start
    assert_ends_like_uninterrupted()
    trained = [line for line in lines(workdir) if "loss" in line]
    seconds = [line["seconds_per_step"] for line in trained]
    assert len(seconds) == NUM_STEPS
    assert 0 < min(seconds) and sum(seconds) < elapsed
    for line in trained:
        assert 0 <= line["data_wait_seconds"] <= line["seconds_per_step"]
        tokens = line["tokens_per_second"] * line["seconds_per_step"]
        assert tokens == pytest.approx(8 * 16)
