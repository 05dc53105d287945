"""Signals to the command that trains, at any moment."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from runs import (
    LONG,
    NUM_STEPS,
    Command,
    changed,
    saved_steps,
    signal_when,
)

from diffeq_former.data.pipeline import train_batches, validation_batches
from diffeq_former.inference import perplexity
from diffeq_former.training import loop


def wait_for(condition, process) -> None:
    while not condition():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)


def assert_done(result, workdir, start: int) -> None:
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout)
    assert (figures["split"], figures["step"]) == ("validation", NUM_STEPS)
    assert set(figures) >= {"loss", "perplexity", "bits_per_byte", "tokens"}
    assert f"finished at step {NUM_STEPS}" in result.stderr
    assert (
        f"{workdir}: from step {start} to {NUM_STEPS}; attention: blockwise; "
        in result.stderr
    )
    assert {path.name for path in workdir.iterdir() if "tfevents" not in path.name} == {
        *("config.json", "dataset.json", "tokenizer", "checkpoints"),
        *("metrics.jsonl", "provenance.jsonl", "samples.txt", "lock"),
    }
    assert any("tfevents" in path.name for path in workdir.iterdir())


def has_trained(workdir) -> bool:
    path = workdir / "metrics.jsonl"
    return path.exists() and path.read_text().count("\n") > 3


def assert_stopped(result, workdir, name: str) -> None:
    assert result.returncode == 75, result.stderr
    [step] = saved_steps(workdir)
    words = f"stopped by {name}: {workdir} is saved up to step {step}; the same"
    assert words in result.stderr
    last = json.loads((workdir / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == step


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT"])
def test_signal_between_steps(config, folder, name, monkeypatch):
    workdir = folder / f"steps-{name}"

    def batches_and_a_signal(*args, **options):
        for count, batch in enumerate(train_batches(*args, **options)):
            if count == 3:
                signal.raise_signal(getattr(signal, name))
            yield batch

    monkeypatch.setattr(loop, "train_batches", batches_and_a_signal)
    result = Command(folder, config).run(workdir)
    assert_stopped(result, workdir, name)
    assert has_trained(workdir)


# Waits for each batch, after the first ones.
SLOW_DATA = """
import runpy, sys, time
from diffeq_former.data import pipeline
train_batches = pipeline.train_batches

def slow_batches(*args, **options):
    for count, batch in enumerate(train_batches(*args, **options)):
        if count > 4:
            time.sleep(1)
        yield batch

pipeline.train_batches = slow_batches
sys.argv[0] = "main"
runpy.run_module("diffeq_former.main", run_name="__main__")
"""


@pytest.mark.parametrize(
    "name", ["SIGTERM", pytest.param("SIGINT", marks=pytest.mark.slow)]
)
def test_signal_to_the_process_group(config, folder, name):
    """As from a launcher or a terminal."""
    workdir = folder / f"group-{name}"
    command = Command(folder, config)
    options = {"script": SLOW_DATA, "start_new_session": True}
    with command.start(workdir, **options) as process:
        wait_for(lambda: has_trained(workdir), process)
        os.killpg(process.pid, getattr(signal, name))
        out, err = process.communicate()
    result = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    assert_stopped(result, workdir, name)


def test_stopped_while_evaluating_then_done_then_only_reported(
    config, folder, monkeypatch
):
    workdir, command = folder / "evaluating", Command(folder, config)
    evaluating = threading.Event()
    with monkeypatch.context() as patched:

        def slow_batches(*args, **options):
            [batch, *_] = validation_batches(*args, **options)
            evaluating.set()
            for _ in range(1000):
                time.sleep(0.1)
                yield batch

        patched.setattr(perplexity, "validation_batches", slow_batches)
        with signal_when(evaluating.is_set, signal.SIGTERM):
            result = command.run(workdir)
    assert result.returncode == 75, result.stderr
    assert f"{workdir}: from step 0 to {NUM_STEPS}; " in result.stderr
    assert saved_steps(workdir) == [config.training.eval_every]
    assert "validation/loss" not in (workdir / "metrics.jsonl").read_text()
    done = command.run(workdir)
    assert_done(done, workdir, config.training.eval_every)
    text = (workdir / "metrics.jsonl").read_text()
    assert text.count("validation/loss") == NUM_STEPS // config.training.eval_every
    again = command.run(workdir)
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert (workdir / "metrics.jsonl").read_text() == text


# Reports when an evaluation starts, and never looks at a signal in it.
DEAF_EVALUATION = """
import sys, time
from diffeq_former.inference import perplexity

def deaf_batches(*args, **options):
    print("evaluating", flush=True)
    time.sleep(1000)
    yield

perplexity.validation_batches = deaf_batches
sys.argv[0] = "main"
import runpy
runpy.run_module("diffeq_former.main", run_name="__main__")
"""


def test_ctrl_c_twice_ends_at_once(config, folder):
    """The second also where the first is never looked at."""
    workdir, command = folder / "twice", Command(folder, config)
    with command.start(workdir, script=DEAF_EVALUATION) as process:
        assert process.stdout.readline() == "evaluating\n"
        process.send_signal(signal.SIGINT)
        words = "stopping once all is saved; Ctrl-C again stops at once\n"
        assert any(line == words for line in process.stderr)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(10) == -signal.SIGINT
        finally:
            process.kill()


@pytest.mark.slow
def test_signal_at_any_moment_of_the_start(config, tmp_path):
    """In imports and compilation: stops with 75, and what it leaves continues."""
    long = changed(config, num_steps=LONG, eval_every=LONG)
    command, codes = Command(tmp_path, long), []
    for delay in (0, 1.5, 3):
        workdir = tmp_path / f"after-{delay}"
        with command.start(workdir) as process:
            wait_for(lambda p=process: handles(p.pid, signal.SIGTERM), process)
            time.sleep(delay)
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate()
        codes.append(process.returncode)
        assert "the same command continues" in err
        assert len(saved_steps(workdir)) == 1
    assert codes == [75] * 3


AT_THE_END = """
import os, runpy, signal, sys

class Late:
    def __init__(self, function, *arguments):
        self.end = function, arguments

    def __del__(self):
        function, arguments = self.end
        function(*arguments)

# Deleted when Python has already restored the default handlers.
sys.late = Late(os.kill, os.getpid(), signal.Signals[sys.argv[1]])
sys.argv[:2] = ["main"]
runpy.run_module("diffeq_former.main", run_name="__main__")
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_after_the_end_changes_nothing(config, folder, tmp_path, name):
    flags = Command(folder, changed(config, num_steps=2)).arguments(tmp_path / "run")
    command = [sys.executable, "-c", AT_THE_END, name, *flags[3:]]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stderr.count("finished at step 2")) == (0, 1)


def handles(pid: int, number: int) -> bool:
    """Whether a process has installed a handler (Linux)."""
    with open(f"/proc/{pid}/status") as file:
        [mask] = [line.split()[1] for line in file if line.startswith("SigCgt:")]
    return bool(int(mask, 16) >> (number - 1) & 1)
