"""Kills and signals at random moments: the run ends like one that was left alone."""

import contextlib
import random
import signal
import subprocess

import pytest
from kills import differences, last_step, run_and_kill
from outcome import assert_allowed
from prepared import prepare_words
from runs import Command, tiny_config

from diffeq_former.training import run_directory

STEPS, ENDS = 200, 5
EVERY = 6  # seeds, as each case takes half a minute


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    dataset = prepare_words(folder, seq_len=16)
    config = run_directory.fit(tiny_config(dataset, num_steps=STEPS), dataset)
    command = Command(folder, config)
    result = command.run_process(folder / "run")
    assert result.returncode == 0, result.stderr
    return command, folder / "run", config


def run_and_signal(command: Command, workdir, rng: random.Random) -> int:
    """Sends a run a signal somewhere in its first seconds; returns its exit code."""
    with command.start(workdir) as process:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0.3, 6))
        process.send_signal(rng.choice([signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]))
        _, err = process.communicate()
    assert process.returncode in (0, 75), err
    assert "Traceback" not in err, err
    return process.returncode


def test_ends_like_a_run_that_was_left_alone(alone, tmp_path, seed):
    rng = random.Random(seed)
    random.seed(seed)
    command, expected, config = alone
    workdir = tmp_path / "run"
    for _ in range(ENDS):
        if rng.random() < 0.5:
            ended = run_and_kill(command, workdir, early=rng.random() < 0.3)
        else:
            ended = run_and_signal(command, workdir, rng)
        print(f"ended by {ended} at step {last_step(workdir)}")
    result = command.run_process(workdir)
    assert_allowed(result)
    assert result.returncode == 0
    assert differences(workdir, expected, config) == []
