"""Helpers for studies that train several runs one after the other."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from diffeq_former.errors import UserError
from diffeq_former.training import metrics_file

# The plain transformer beside a model.
BASELINE = ("model.weights=layer_table", "model.solver=lie_trotter")


def config_flags(settings: Sequence[str]) -> list[str]:
    """Return SECTION.FIELD=VALUE as flags for `diffeq_former.main`."""
    return [f"--config.{setting}" for setting in settings]


def config_arguments(argv: list[str]) -> list[str]:
    """Return the flags of a command line that select and override the config."""
    found = []
    for flag, following in zip(argv, [*argv[1:], "-"], strict=True):
        if flag.startswith("--config"):
            separate = "=" not in flag and not following.startswith("-")
            found.append(f"{flag}={following}" if separate else flag)
    return found


class Study:
    """Trains the runs of a study one after the other, and says how far it is.

    Args:
      output: Folder of the runs.
      num_runs: How many there are.
    """

    def __init__(self, output: Path, num_runs: int):
        self._output, self._num_runs = output, num_runs
        self._number, self._seconds = 0, []

    def train(self, name: str, *config: str) -> int:
        """Start or resume training in the folder `name`, and return the exit code.

        Its stdout is discarded, as the folder has the same metrics.

        Args:
          name: The run's folder in that of the study.
          *config: Flags for `diffeq_former.main`.
        """
        self._number += 1
        workdir = self._output / name
        print(
            f"run {self._number} of {self._num_runs}{self._time_left()}: {workdir}:"
            f" {' '.join(config)}",
            file=sys.stderr,
            flush=True,
        )
        command = [sys.executable, "-m", "diffeq_former.main", *config]
        start, is_new = time.monotonic(), not workdir.exists()
        code = subprocess.run(
            [*command, f"--workdir={workdir}"], stdout=subprocess.DEVNULL
        ).returncode
        if is_new:
            self._seconds.append(time.monotonic() - start)
        return code

    def _time_left(self) -> str:
        """Return an estimate by the runs that have been trained since the start."""
        if not self._seconds:
            return ""
        mean = sum(self._seconds) / len(self._seconds)
        minutes = mean * (self._num_runs - self._number + 1) / 60
        return f", about {minutes:.0f} min left"


def records(workdir: Path, name: str) -> dict[int, float]:
    """Return the values of a metric by step; for repeated steps the last value."""
    lines = metrics_file.read(workdir)
    return {line["step"]: line[name] for line in lines if name in line}


def validation_losses(workdir: Path) -> dict[int, float]:
    """Return the validation losses by step.

    Raises:
      UserError: If the run was never evaluated.
    """
    found = records(workdir, "validation/loss")
    if not found:
        raise UserError(
            f"{workdir} was never evaluated: set training.eval_every to 1 or more"
        )
    return found


def report(output: Path, rows: list[dict]) -> None:
    """Print what a study has measured, a JSON object for each run, and store it."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (output / "figures.jsonl").write_text(text, encoding="utf-8")
    print(text, end="", flush=True)
