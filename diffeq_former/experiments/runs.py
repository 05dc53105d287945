"""Helpers for studies that train several runs one after the other."""

import json
import subprocess
import sys
from pathlib import Path

from diffeq_former.errors import UserError
from diffeq_former.training import metrics_file


def config_arguments(argv: list[str]) -> list[str]:
    """Return the flags of a command line that select and override the config."""
    found = []
    for flag, following in zip(argv, [*argv[1:], "-"], strict=True):
        if flag.startswith("--config"):
            separate = "=" not in flag and not following.startswith("-")
            found.append(f"{flag}={following}" if separate else flag)
    return found


def train(workdir: Path, *config: str) -> int:
    """Start or resume training in `workdir`, and return the exit code.

    Its stdout is discarded, as `workdir` has the same metrics.

    Args:
      workdir: Folder of the run.
      *config: Flags for `diffeq_former.main`.
    """
    print(f"{workdir}: {' '.join(config)}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "diffeq_former.main", *config]
    return subprocess.run(
        [*command, f"--workdir={workdir}"], stdout=subprocess.DEVNULL
    ).returncode


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
