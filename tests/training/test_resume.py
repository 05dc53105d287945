"""Processes that end before their time are resumed bit for bit.

Many more kills: soak.py.
"""

import dataclasses
import signal
import time

import pytest
from kills import differences, lines, run_and_kill
from runs import NUM_STEPS, STALLED_DATA, Command

from diffeq_former.training import checkpoint


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
    """With a checkpoint, and somewhere in its start."""
    run_and_kill(command, workdir, early=False)
    run_and_kill(command, workdir, early=True)
    run_and_kill(command, workdir, early=False)
    assert_ends_like_uninterrupted()


@pytest.mark.slow
def test_stalled_data(command, workdir, assert_ends_like_uninterrupted):
    """Until SIGTERM, and until the timeout: each ends the run with a line, no loss."""
    script = {"script": STALLED_DATA.format(8)}
    with command.start(workdir, "--config.data.timeout=20", **script) as process:
        words = "waiting for data: the batch of step 2 has not arrived after 2 s\n"
        assert any(line.endswith(words) for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        asked = time.monotonic()
        _, err = process.communicate()
    assert time.monotonic() - asked < 15
    assert process.returncode == 75, err
    assert checkpoint.saved_steps(workdir / "checkpoints") == [1]
    assert f"stopped by SIGTERM: {workdir} is saved up to step 1; the same" in err

    result = command.run_process(workdir, "--config.data.timeout=5", **script)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        "error: the batch of step 3 did not arrive within 5 s (config.data.timeout):"
        " the last good checkpoint is that of step 1; the same command continues"
    )
    words = "waiting for data: the batch of step 3 has not arrived after"
    assert result.stderr.count(words) == 9
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
