"""One tiny run of training, and the command lines that use it."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from cases import mesh_of
from prepared import prepare_words
from runs import ROOT, Command, tiny_config

from diffeq_former.data.dataset import Dataset
from diffeq_former.training import run_directory

QUICK_COMPILATION = ("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")


class Trained(NamedTuple):
    workdir: Path
    dataset: Dataset
    run: run_directory.Run


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
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*QUICK_COMPILATION)
        result = Command(folder, config).run(folder / "run")
    assert result.returncode == 0, result.stderr
    return Trained(
        folder / "run", dataset, run_directory.load(folder / "run", mesh_of(8))
    )


@pytest.fixture(scope="session")
def tool(tmp_path_factory):
    """Runs a command line of tools/; gives exit code, stdout and stderr."""
    cache = tmp_path_factory.mktemp("cache")
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        **dict([QUICK_COMPILATION]),
    }

    def run(name, *flags, num_devices=1):
        return subprocess.run(
            [sys.executable, ROOT / "tools" / name, *flags],
            env=environment | {"JAX_NUM_CPU_DEVICES": str(num_devices)},
            capture_output=True,
            text=True,
        )

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
