"""Helpers for studies that train several runs one after the other."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from diffeq_former.config import variants

# Settings of the plain transformer beside a model, and of one with shared weights.
BASELINE, SHARED = (
    tuple(f"{name}={value}" for name, value in changes.items())
    for changes in (variants.BASELINE, variants.SHARED)
)


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


# Rows that identify runs, each with the run's folder. A study measures its runs after
# all are trained, since reading them takes the devices that the trainings need.
Trained = list[tuple[dict, Path]]


class Study:
    """Trains the runs of a study one after the other, and reports its progress.

    Args:
      folder: Folder of the runs.
      num_runs: Their number.
      config_flags: Flags for `diffeq_former.main` that the models share.
    """

    def __init__(self, folder: Path, num_runs: int, config_flags: Sequence[str]):
        self._folder, self._num_runs, self._shared = folder, num_runs, config_flags
        self._number, self._seconds = 0, []

    def train_model(self, settings: Sequence[str], seed: int) -> Path:
        """Train a model with these settings beside the shared ones; see `train`.

        Models with the same settings and seed are the same run.

        Args:
          settings: SECTION.FIELD=VALUE; of a path, the last part names the run.
          seed: The run's seed.
        """
        name = list(settings)
        if set(BASELINE) <= set(settings):
            name = ["plain", *(x for x in settings if x not in BASELINE)]
        name = ",".join(re.sub("=.*/", "=", x) for x in name) or "config"
        flags = config_flags([*settings, f"seed={seed}"])
        return self.train(f"{name},seed={seed}", *self._shared, *flags)

    def train(self, name: str, *flags: str) -> Path:
        """Start or resume a training, and return its folder.

        Its stdout is discarded, as the folder has the same metrics.

        Args:
          name: The run's folder in that of the study.
          *flags: Flags for `diffeq_former.main`.

        Raises:
          SystemExit: With the exit code of a training that does not end well.
        """
        self._number += 1
        workdir = self._folder / name
        print(
            f"run {self._number} of {self._num_runs}{self._time_left()}: {workdir}:"
            f" {' '.join(flags)}",
            file=sys.stderr,
            flush=True,
        )
        command = [sys.executable, "-m", "diffeq_former.main", *flags]
        start, is_new = time.monotonic(), not workdir.exists()
        code = subprocess.run(
            [*command, f"--workdir={workdir}"], stdout=subprocess.DEVNULL
        ).returncode
        if code:
            raise SystemExit(code)
        if is_new:
            self._seconds.append(time.monotonic() - start)
        return workdir

    def _time_left(self) -> str:
        """Return an estimate by the runs that have been trained since the start."""
        if not self._seconds:
            return ""
        mean = sum(self._seconds) / len(self._seconds)
        minutes = mean * (self._num_runs - self._number + 1) / 60
        return f", about {minutes:.0f} min left"


def report(output: Path, rows: list[dict]) -> None:
    """Print what a study has measured, a JSON object for each run, and store it."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (output / "figures.jsonl").write_text(text, encoding="utf-8")
    print(text, end="", flush=True)
