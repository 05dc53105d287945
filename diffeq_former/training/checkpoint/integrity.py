"""Checkpoint integrity: choose an undamaged checkpoint, and set damaged ones aside."""

import dataclasses
import itertools
import shutil
from collections.abc import Iterable
from pathlib import Path

from diffeq_former.training.checkpoint import checksums


@dataclasses.dataclass(frozen=True)
class Damaged:
    """A checkpoint whose files have changed since they were written."""

    path: Path
    damages: list[str]  # descriptions, at least one

    def __str__(self) -> str:
        first, *others = self.damages
        more = f" (and {len(others)} more)" if others else ""
        return f"checkpoint {self.path} is damaged: {first}{more}"


def choose(
    directory: Path, steps: Iterable[int], part: str = ""
) -> tuple[int | None, list[Damaged]]:
    """Return the latest undamaged checkpoint; earlier ones are not checked.

    Args:
      directory: The directory of the checkpoints.
      steps: The steps to choose from.
      part: A prefix of names; only files whose names start with it are checked.

    Returns:
      The step (None if all are damaged), and the later, damaged checkpoints, the latest
      first.
    """
    damaged = []
    for step in sorted(steps, reverse=True):
        path = directory / str(step)
        found = checksums.damages(path, part)
        if not found:
            return step, damaged
        damaged.append(Damaged(path, found))
    return None, damaged


def set_aside(damaged: Damaged) -> Path:
    """Move a checkpoint to checkpoints-damaged/ and return its new path.

    The new name is STEP, or STEP.1, STEP.2 and so on if that exists.
    """
    path = damaged.path
    folder = path.parent.with_name(path.parent.name + "-damaged")
    folder.mkdir(exist_ok=True)
    suffixes = itertools.chain([""], (f".{k}" for k in itertools.count(1)))
    targets = (folder / f"{path.name}{suffix}" for suffix in suffixes)
    target = next(target for target in targets if not target.exists())
    return Path(shutil.move(path, target))  # which may be on another device
