"""One tiny run of training, and the command lines that use it."""

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import command_lines
import grain  # noqa: F401 - defines flags, which a command line's own must not hide
import pytest
from absl import flags
from cases import mesh_of
from loops import steps_traced_once
from prepared import prepare_words
from runs import Command, tiny_config

from diffeq_former.data.dataset import Dataset
from diffeq_former.experiments import scheduler
from diffeq_former.training import run_directory


class Trained(NamedTuple):
    workdir: Path
    dataset: Dataset
    run: run_directory.LoadedRun


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Three steps, with an evaluation and a sample at the end."""
    folder = tmp_path_factory.mktemp("trained")
    dataset = prepare_words(folder, seq_len=16)
    config = tiny_config(
        dataset, num_steps=3, eval_every=3, sample_every=3, sample_prompt="the"
    )
    # At this rate three steps leave weights that prefer some tokens clearly.
    faster = dataclasses.replace(config.optimizer, learning_rate=0.05)
    # Both axes that cut parameters divide it; two ids are no tokens.
    model = dataclasses.replace(config.model, vocab_size=258)
    config = dataclasses.replace(config, optimizer=faster, model=model)
    result = Command(folder, config).run(folder / "run")
    assert result.returncode == 0, result.stderr
    return Trained(
        folder / "run", dataset, run_directory.load(folder / "run", mesh_of())
    )


@pytest.fixture(scope="session")
def tool():
    """Runs a command line of tools/; gives exit code, stdout and stderr."""

    def run(name, *flags, num_devices=1):
        if num_devices > 1:
            return command_lines.run_process(name, *flags, num_devices=num_devices)
        return command_lines.run(name, *flags)

    return run


@pytest.fixture(scope="session")
def refused(tool):
    """The one line that a command line answers to wrong input."""

    def run(name, *flags):
        result = tool(name, *flags)
        assert (result.returncode, result.stdout) == (2, ""), result.stderr
        [line] = result.stderr.splitlines()
        return line.removeprefix("error: ")

    return run


@pytest.fixture
def trainings_in_this_process(monkeypatch):
    """What a study trains is a command line within its own: both define flags."""
    state = vars(flags.FLAGS)
    before = _copied(state)

    def start(command, stdout, stderr):
        [python, dash_m, module, *arguments] = command
        assert (python, dash_m, stdout) == (sys.executable, "-m", subprocess.DEVNULL)
        outer = dict(state)
        state.update(_copied(before))
        try:
            with steps_traced_once():
                result = command_lines.run(module, *arguments)
        finally:
            state.update(outer)
        if stderr is None:
            sys.stderr.write(result.stderr)
        else:
            stderr.write(result.stderr.encode())
        return _Ended(result.returncode)

    monkeypatch.setattr(scheduler, "subprocess", _Subprocess(start, subprocess.DEVNULL))


class _Ended(NamedTuple):
    returncode: int

    def poll(self):
        return self.returncode


class _Subprocess(NamedTuple):
    Popen: Callable
    DEVNULL: int


def _copied(values: dict) -> dict:
    """A copy of its dictionaries and lists, but not of the flags in them."""
    containers = (dict, list)
    return {
        key: (_copied(value) if isinstance(value, dict) else list(value))
        if isinstance(value, containers)
        else value
        for key, value in values.items()
    }
