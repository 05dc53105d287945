"""Which checkpoint to go on from when some are damaged, and what becomes of those."""

import dataclasses
import itertools
from collections.abc import Iterable
from pathlib import Path

from diffeq_former.training.checkpoint import checksums


@dataclasses.dataclass(frozen=True)
class Damaged:
    """A checkpoint with files that are not as they were written."""

    path: Path
    damages: list[str]  # at least one

    def __str__(self) -> str:
        first, *others = self.damages
        more = f" (and {len(others)} more)" if others else ""
        return f"checkpoint {self.path} is damaged: {first}{more}"


def choose(
    directory: Path, steps: Iterable[int], part: str = ""
) -> tuple[int | None, list[Damaged]]:
    """The latest of these steps that is not damaged (None: all are).

    With the damaged ones after it, the latest first. Looks at no other, and only at
    files whose names start with `part`.
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
    """Moves it to checkpoints-damaged/, as STEP, STEP.1 and so on; returns where."""
    path = damaged.path
    folder = path.parent.with_name(path.parent.name + "-damaged")
    folder.mkdir(exist_ok=True)
    suffixes = itertools.chain([""], (f".{k}" for k in itertools.count(1)))
    places = (folder / f"{path.name}{suffix}" for suffix in suffixes)
    return path.rename(next(place for place in places if not place.exists()))
