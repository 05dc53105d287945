"""Studies: several runs of training, one after the other, and what became of them."""

import json
import subprocess
import sys
from pathlib import Path

from diffeq_former.errors import UserError


def config_words(argv: list[str]) -> list[str]:
    """Of a command line the flags that choose and change the config."""
    given = []
    for flag, following in zip(argv, [*argv[1:], "-"], strict=True):
        if flag.startswith("--config"):
            apart = "=" not in flag and not following.startswith("-")
            given.append(f"{flag}={following}" if apart else flag)
    return given


def train(workdir: Path, *config: str) -> int:
    """Trains, or goes on, with these flags for `diffeq_former.main`; its exit code.

    What it prints on stdout is in its folder too.
    """
    print(f"{workdir}: {' '.join(config)}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "diffeq_former.main", *config]
    return subprocess.run(
        [*command, f"--workdir={workdir}"], stdout=subprocess.DEVNULL
    ).returncode


def records(workdir: Path, name: str) -> dict[int, float]:
    """The values of a metric by step; of steps done twice the last."""
    text = (workdir / "metrics.jsonl").read_text(encoding="utf-8")
    lines = map(json.loads, text.splitlines())
    return {line["step"]: line[name] for line in lines if name in line}


def validation_losses(workdir: Path) -> dict[int, float]:
    """By step.

    Raises:
      UserError: if there are none.
    """
    found = records(workdir, "validation/loss")
    if not found:
        raise UserError(
            f"{workdir} was never evaluated: set training.eval_every to 1 or more"
        )
    return found
