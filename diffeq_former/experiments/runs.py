"""The runs of a study, and the flags that they share."""

import re
from collections.abc import Sequence
from pathlib import Path

from diffeq_former.config import variants
from diffeq_former.experiments import scheduler
from diffeq_former.experiments.scheduler import Run
from diffeq_former.json_io import dumps

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


# Rows that identify runs, each with its run. A study measures its runs after all are
# trained, since reading them takes the devices that the trainings need.
Rows = list[tuple[dict, Run]]


class Study:
    """The runs of a study: a study first lists them, and then trains the list.

    Args:
      folder: Folder of the runs.
      config_flags: Flags for `diffeq_former.main` that the models share.
      num_parallel: Number of runs to train at the same time.

    Raises:
      UserError: If there are fewer cores.
    """

    def __init__(self, folder: Path, config_flags: Sequence[str], num_parallel: int):
        self.folder, self._shared = folder, tuple(config_flags)
        self._cores = scheduler.split_cores(num_parallel)

    def of_model(self, settings: Sequence[str], seed: int) -> Run:
        """Return the run of a model with these settings beside the shared ones.

        Models with the same settings and seed are the same run.

        Args:
          settings: SECTION.FIELD=VALUE.
          seed: The run's seed.
        """
        name = list(settings)
        if set(BASELINE) <= set(settings):
            name = ["plain", *(x for x in settings if x not in BASELINE)]
        return self.named(name or ["config"], settings, seed)

    def named(self, name: Sequence[str], settings: Sequence[str], seed: int) -> Run:
        """As `of_model`, in a folder of another name.

        Args:
          name: The parts of the name beside the seed; of SECTION.FIELD=PATH, it has the
            last part of the path.
          settings: SECTION.FIELD=VALUE.
          seed: The run's seed.
        """
        parts = [re.sub("=.*/", "=", part) for part in [*name, f"seed={seed}"]]
        flags = config_flags([*settings, f"seed={seed}"])
        return Run(self.folder / ",".join(parts), (*self._shared, *flags))

    def tuned(self, base: Run, name: str, flags: Sequence[str]) -> Run:
        """Return the run of a fine-tuning.

        Args:
          base: The run that it needs.
          name: What follows the name of the base in that of the run.
          flags: Flags for `diffeq_former.main`.
        """
        workdir = self.folder / f"{base.workdir.name},{name}"
        return Run(workdir, tuple(flags), after=base)

    def train(self, rows: Rows, *, may_diverge: bool = False) -> None:
        """Train the runs of these rows; see `scheduler.train`."""
        runs = [run for _, run in rows]
        scheduler.train(runs, self._cores, may_diverge=may_diverge)


def report(output: Path, rows: list[dict]) -> None:
    """Print what a study has measured, a JSON object for each row, and store it."""
    text = "".join(dumps(row) + "\n" for row in rows)
    (output / "figures.jsonl").write_text(text, encoding="utf-8")
    print(text, end="", flush=True)
