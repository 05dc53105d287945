"""Saving of checkpoints, and which of them to retain."""

import json
import logging
import math
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orbax.checkpoint as ocp
from flax import serialization

from diffeq_former.distributed.multihost import is_primary
from diffeq_former.errors import UserError
from diffeq_former.training.checkpoint import checksums
from diffeq_former.training.state import TrainState

PARAMS, REST, METRICS = "params", "training", "metrics"
LOSS = "validation_loss"
PARTIAL = ".partial"
# A generous timeout: Orbax measures it with the wall clock, which may jump.
SECONDS_TO_SAVE = 24 * 60 * 60

# Orbax takes some characters of paths for patterns, and gs: for a bucket.
_MISREAD = re.compile(r"[\[\]*?\\]|(?<![^/])gs:(?![^/])")


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
        if is_primary():
            directory.mkdir(parents=True, exist_ok=True)
            for path in directory.glob(f"*{PARTIAL}*"):
                shutil.rmtree(path)

    def save(
        self, step: int, state: TrainState, validation_loss: float | None = None
    ) -> None:
        """Start to save; errors are raised by the next call of `save` or `wait`."""
        self.wait()
        rest = serialization.to_state_dict(state)
        items = {PARAMS: rest.pop("params"), REST: rest}
        metrics = {} if validation_loss is None else {LOSS: validation_loss}
        self._checkpointer.save(
            self._path(step, PARTIAL),
            args=ocp.args.Composite(
                **{name: ocp.args.StandardSave(x) for name, x in items.items()},
                **{METRICS: ocp.args.JsonSave(metrics)},
            ),
        )
        self._saving = self._worker.submit(self._finish, step)

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

    def _finish(self, step: int) -> None:
        """Complete a checkpoint once Orbax has written it in all processes."""
        self._checkpointer.wait_until_finished()
        if is_primary():
            checksums.write(self._path(step, PARTIAL))
            self._path(step, PARTIAL).rename(self._path(step))
            for unwanted in self._unwanted():
                self._remove(unwanted)

    def _remove(self, step: int) -> None:
        self._path(step).rename(self._path(step, PARTIAL))
        shutil.rmtree(self._path(step, PARTIAL))

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


def saved_steps(directory: Path) -> list[int]:
    """Return the steps of the checkpoints, in ascending order."""
    paths = directory.iterdir() if directory.is_dir() else ()
    return sorted(int(path.name) for path in paths if path.name.isdecimal())


def validation_loss(path: Path) -> float | None:
    """Return the validation loss of a checkpoint; None if it was not evaluated."""
    return json.loads((path / METRICS / METRICS).read_text()).get(LOSS)


def make_handler() -> ocp.StandardCheckpointHandler:
    """Return a handler that saves and restores a tree of arrays."""
    logging.getLogger("absl").addFilter(_not_by_orbax)
    return ocp.StandardCheckpointHandler()


def _not_by_orbax(record: logging.LogRecord) -> bool:
    """Filter out Orbax's log records: advice, and tracebacks of errors it raises."""
    return "orbax" not in record.pathname
