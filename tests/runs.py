"""Tiny runs of training: a config, and the command line, here or as a process."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import command_lines
from loops import steps_traced_once

from diffeq_former.config import (
    Config,
    DataConfig,
    ModelConfig,
    TrainingConfig,
    to_config_dict,
)
from diffeq_former.data.dataset import Dataset
from diffeq_former.training import checkpoint

ROOT = command_lines.ROOT
NUM_STEPS = 24
LONG = 100_000  # more steps than a test takes

TINY = Config(
    model=ModelConfig(
        num_layers=2,
        d_model=16,
        num_heads=2,
        vocab_size=257,
        max_len=16,
        time_embed_dim=4,
        num_frequencies=4,
        dropout=0.1,
        dtype="float32",
    ),
    training=TrainingConfig(
        num_steps=NUM_STEPS,
        batch_size=8,
        log_every=1,
        eval_every=8,
        checkpoint_every=3,
    ),
)


def tiny_config(dataset: Dataset, **training) -> Config:
    """TINY on the dataset, with some training settings changed."""
    data = DataConfig(path=str(dataset.path))
    return changed(dataclasses.replace(TINY, data=data), **training)


def changed(config: Config, **training) -> Config:
    """The config with some training settings changed."""
    settings = dataclasses.replace(config.training, **training)
    return dataclasses.replace(config, training=settings)


def assert_one_line(result, *parts: str) -> None:
    """Check that a command was refused with one line, which has these parts."""
    assert result.returncode == 2, result.stderr
    [line] = [x for x in result.stderr.splitlines() if x.startswith("error: ")]
    assert result.stderr.endswith(line + "\n") and "Traceback" not in result.stderr
    for part in parts:
        assert part in line


def saved_steps(workdir: Path) -> list[int]:
    return checkpoint.saved_steps(workdir / "checkpoints")


class Command:
    """`python -m diffeq_former.main` on a config that it writes into a folder."""

    def __init__(self, folder: Path, config: Config):
        self._folder = folder
        lines = ["from diffeq_former.config import default_config", ""]
        lines += ["def get_config():", "    config = default_config()"]
        values = to_config_dict(config).to_dict()
        lines += [f"    config.update({values!r})", "    return config"]
        (folder / "config.py").write_text("\n".join(lines))

    def start(
        self,
        workdir: Path,
        *flags: str,
        script: str | None = None,
        environment: dict[str, str] | None = None,
        launcher: int = 0,
        **options,
    ) -> subprocess.Popen:
        """Starts it, a script in its place, or the launcher with so many processes."""
        command = [sys.executable, "-m", "diffeq_former.main"]
        if script:
            command[1:] = ["-c", script]
        if launcher:
            command = [f"{ROOT}/launch/local.sh", str(launcher)]
        # With the precision of the tests, so that they share compiled programs.
        known = {"JAX_DEFAULT_MATMUL_PRECISION": "highest", "PYTHON": sys.executable}
        return subprocess.Popen(
            [*command, *self._flags(workdir), *flags],
            env=os.environ | known | (environment or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def run(self, workdir: Path, *flags: str) -> subprocess.CompletedProcess:
        """Runs it to its end in this process."""
        with steps_traced_once():
            return command_lines.run(command_lines.MAIN, *self._flags(workdir), *flags)

    def run_process(
        self, workdir: Path, *flags: str, **options
    ) -> subprocess.CompletedProcess:
        with self.start(workdir, *flags, **options) as process:
            out, err = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def arguments(self, workdir: Path) -> list[str]:
        """Return the command line of a process that runs it."""
        return [sys.executable, "-m", "diffeq_former.main", *self._flags(workdir)]

    def _flags(self, workdir: Path) -> tuple[str, str]:
        return f"--config={self._folder}/config.py", f"--workdir={workdir}"


@contextlib.contextmanager
def signal_when(condition: Callable[[], bool], number: signal.Signals):
    """Sends this process a signal as soon as the condition holds, within the block."""
    ended = threading.Event()

    def wait():
        while not ended.is_set():
            if condition():
                os.kill(os.getpid(), number)
                return
            time.sleep(0.01)

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


# Its file system answers no more after so many rows.
STALLED_DATA = """
import itertools, runpy, sys, threading
from diffeq_former.data.rows import Rows
read, reads = Rows._read, itertools.count()
answer = lambda: next(reads) < {} or threading.Event().wait()
Rows._read = lambda *args: answer() and read(*args)
sys.argv[0] = "main"
runpy.run_module("diffeq_former.main", run_name="__main__")
"""
