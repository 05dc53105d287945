"""Saving of checkpoints, and which of them to retain."""

import json
import math
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import orbax.checkpoint as ocp
from flax import serialization
from tqdm import tqdm

from diffeq_former.distributed.multihost import is_primary
from diffeq_former.errors import UserError
from diffeq_former.training.checkpoint import checksums
from diffeq_former.training.checkpoint.structure import (
    UNREADABLE,
    differences,
    listed,
    make_handler,
    reason,
)
from diffeq_former.training.state import TrainState

PARAMS, REST, METRICS = "params", "training", "metrics"
LOSS = "validation_loss"
PARTIAL = ".partial"
_STEP = re.compile("0|[1-9][0-9]*")
# A generous timeout: Orbax measures it with the wall clock, which may jump.
SECONDS_TO_SAVE = 24 * 60 * 60

# Orbax takes some characters of paths for patterns, and gs: for a bucket.
_MISREAD = re.compile(r"[\[\]*?\\]|gs:(?![^/])")


def check_path(directory: Path) -> None:
    """Check before anything is written that Orbax can use the path.

    Raises:
      UserError: If Orbax would misread it.
      UnicodeEncodeError: If it is not valid Unicode.
    """
    path = str(directory.absolute())
    path.encode()  # raises an error if it is not valid Unicode
    if match := _MISREAD.search(path):
        raise UserError(
            f"{directory}: checkpoints cannot be stored in a folder with {match[0]!r}"
            " in its path; use another name, on a local or mounted disk"
        )


class Checkpoints:
    """The checkpoints in a directory, which is created; for one writer at a time.

    Args:
      directory: The directory of the checkpoints.
      keep_latest: How many of the latest checkpoints to retain.
      keep_best: How many checkpoints of lowest validation loss to retain.
    """

    def __init__(self, directory: Path, keep_latest: int, keep_best: int):
        check_path(directory)
        self._directory = directory.absolute()
        self._keep_latest, self._keep_best = keep_latest, keep_best
        handlers = {PARAMS: make_handler(), REST: make_handler()}
        self._checkpointer = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(
                **handlers, **{METRICS: ocp.JsonCheckpointHandler(METRICS)}
            ),
            async_options=ocp.AsyncOptions(timeout_secs=SECONDS_TO_SAVE),
        )
        self._worker, self._saving = ThreadPoolExecutor(1), None
        self._not_removed: set[int] = set()  # after a warning
        if is_primary():
            directory.mkdir(parents=True, exist_ok=True)
            for path in directory.glob(f"*{PARTIAL}*"):
                _remove(path)

    def save(
        self, step: int, state: TrainState, validation_loss: float | None = None
    ) -> None:
        """Start to save; errors are raised by the next call of `save` or `wait`."""
        self.wait()
        if self._path(step, PARTIAL).exists():  # it could not be removed at the start
            raise UserError(f"{self._path(step, PARTIAL)} is in the way: remove it")
        rest = serialization.to_state_dict(state)
        items = {PARAMS: rest.pop("params"), REST: rest}
        abstract = jax.tree.map(jax.typeof, items)
        metrics = {} if validation_loss is None else {LOSS: validation_loss}
        self._checkpointer.save(
            self._path(step, PARTIAL),
            args=ocp.args.Composite(
                **{name: ocp.args.StandardSave(x) for name, x in items.items()},
                **{METRICS: ocp.args.JsonSave(metrics)},
            ),
        )
        self._saving = self._worker.submit(self._finish, step, abstract)

    def wait(self) -> None:
        """Wait until the last save is complete, and raise its error if it failed."""
        if self._saving is not None:
            saving, self._saving = self._saving, None
            saving.result()

    def remove_after(self, step: int) -> None:
        """Remove later checkpoints, which a rolled-back run will save again."""
        self.wait()
        if is_primary():
            for later in saved_steps(self._directory):
                if later > step:
                    self._remove(later)

    def close(self) -> None:
        """Wait for the last save and release the threads."""
        try:
            self.wait()
        finally:
            self._worker.shutdown()
            self._checkpointer.close()

    def _finish(self, step: int, abstract: dict[str, dict]) -> None:
        """Complete a checkpoint once Orbax has written it in all processes.

        Its structure is read back before the checkpoint gets its name and older ones
        are removed.
        """
        self._checkpointer.wait_until_finished()
        if is_primary():
            self._check_structure(step, abstract)
            checksums.write(self._path(step, PARTIAL))
            self._path(step, PARTIAL).rename(self._path(step))
            for unwanted in self._unwanted() - self._not_removed:
                self._remove(unwanted)

    def _check_structure(self, step: int, abstract: dict[str, dict]) -> None:
        try:
            wrong = differences(self._path(step, PARTIAL), abstract)
        except UNREADABLE as error:
            wrong = [reason(error)]
        if wrong:
            raise UserError(
                f"the checkpoint of step {step} was written to {self._directory}, but"
                f" cannot be read back ({listed(wrong)}): check the disk; older"
                " checkpoints were not removed"
            )

    def _remove(self, step: int) -> None:
        """Remove a checkpoint; first its name, so that a half-removed one has none."""
        try:
            path = self._path(step).rename(self._path(step, PARTIAL))
        except OSError as error:
            _warn_not_removed(self._path(step), error)
            self._not_removed.add(step)
        else:
            _remove(path)

    def _unwanted(self) -> set[int]:
        """Return the steps of checkpoints to remove: those neither latest nor best.

        Only checkpoints with a finite validation loss are compared. Those whose metrics
        are damaged are retained.
        """
        losses = {}
        for step in saved_steps(self._directory):
            if not checksums.damages(self._path(step), f"{METRICS}/"):
                loss = validation_loss(self._path(step))
                losses[step] = math.inf if loss is None else loss
        comparable = [step for step, loss in losses.items() if math.isfinite(loss)]
        best = sorted(comparable, key=losses.get)[: self._keep_best]
        return losses.keys() - {*best, *list(losses)[-self._keep_latest :]}

    def _path(self, step: int, suffix: str = "") -> Path:
        return self._directory / f"{step}{suffix}"


def _remove(path: Path) -> None:
    """Remove a file or folder; print a warning if that is not possible."""
    try:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    except OSError as error:
        _warn_not_removed(path, error)


def _warn_not_removed(path: Path, error: OSError) -> None:
    tqdm.write(f"{path} cannot be removed ({error.strerror})", file=sys.stderr)


def saved_steps(directory: Path) -> list[int]:
    """Return the steps of the checkpoints, in ascending order."""
    paths = directory.iterdir() if directory.is_dir() else ()
    return sorted(int(path.name) for path in paths if _STEP.fullmatch(path.name))


def validation_loss(path: Path) -> float | None:
    """Return the validation loss of a checkpoint; None if it was not evaluated."""
    return json.loads((path / METRICS / METRICS).read_text()).get(LOSS)
