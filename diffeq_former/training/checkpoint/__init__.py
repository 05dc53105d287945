"""Checkpoints of a run: the latest few, and the few of lowest validation loss.

A checkpoint holds the whole TrainState. Nothing else changes during a run: the next
batch and all random keys are functions of the seed and the state's counters, and the
config, the tokenizer and `dataset.json` are stored in the run directory. Parameters and
the rest are separate items, so that tools can read the parameters alone.

Saving is asynchronous and atomic. Orbax writes a folder STEP.partial; when it is
complete and has its checksums it is renamed to STEP, and only then are old checkpoints
removed. So a checkpoint that does not match its checksums, or has none, is damaged.

Retention is not left to Orbax's CheckpointManager (version 0.12): it cannot start if
the metrics of any checkpoint are damaged, and such runs can be resumed here.
"""

import contextlib
import json
import logging
import math
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orbax.checkpoint as ocp
from flax import serialization, traverse_util

from diffeq_former.distributed.multihost import from_primary, is_primary, run_on_all
from diffeq_former.errors import UserError
from diffeq_former.training.checkpoint import checksums
from diffeq_former.training.checkpoint.integrity import Damaged, choose
from diffeq_former.training.state import TrainState

PARAMS, REST, METRICS = "params", "training", "metrics"
LOSS = "validation_loss"
PARTIAL = ".partial"
NAMED_AT_MOST = 6
# A generous timeout: Orbax measures it with the wall clock, which may jump.
SECONDS_TO_SAVE = 24 * 60 * 60

_NOTHING_SAVED = -1


class Checkpoints:
    """The checkpoints in a directory, which is created; for one writer at a time.

    Args:
      directory: The directory of the checkpoints.
      keep_latest: How many of the latest checkpoints to retain.
      keep_best: How many checkpoints of lowest validation loss to retain.
    """

    def __init__(self, directory: Path, keep_latest: int, keep_best: int):
        self._directory = directory.absolute()
        self._keep_latest, self._keep_best = keep_latest, keep_best
        handlers = {PARAMS: _handler(), REST: _handler()}
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
                loss = _validation_loss(self._path(step))
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


def restore_latest(
    directory: Path, abstract_state: TrainState, before: int | None = None
) -> tuple[TrainState, float | None, list[Damaged]] | None:
    """Restore the latest checkpoint that is not damaged.

    Args:
      directory: The directory of the checkpoints.
      abstract_state: The shapes, dtypes and shardings of the state.
      before: If given, consider only checkpoints before this step, if there are any.

    Returns:
      The state; its validation loss, if it was evaluated; and the later, damaged
      checkpoints, which are not moved. None if nothing was saved yet.

    Raises:
      UserError: If all checkpoints are damaged, or arrays are missing, unexpected or
        have other shapes; the message names them.
    """
    step, damaged = run_on_all(lambda: _choose_latest(directory, before))
    step = from_primary(step)
    if step == _NOTHING_SAVED:
        return None
    path = directory / str(step)
    rest = serialization.to_state_dict(abstract_state)
    expected = {PARAMS: rest.pop("params"), REST: rest}
    restored = _restore(path, expected)
    merged = restored[REST] | {"params": restored[PARAMS]}
    state = serialization.from_state_dict(abstract_state, merged)
    return state, _validation_loss(path), damaged


def _choose_latest(directory: Path, before: int | None) -> tuple[int, list[Damaged]]:
    """Choose the step to resume from, in process 0; others return a placeholder."""
    steps = saved_steps(directory)
    if before is not None:
        steps = [step for step in steps if step < before] or steps
    if not steps or not is_primary():
        return _NOTHING_SAVED, []
    step, damaged = choose(directory, steps)
    if step is None:
        raise UserError(
            f"{_listed(damaged)}: no checkpoint is left to resume from; use another"
            f" --workdir, or remove {directory} to start again"
        )
    return step, damaged


def load_params(
    directory: Path, step: int | None, abstract_params: dict
) -> tuple[dict, int, list[Damaged]]:
    """Restore the parameters of a checkpoint.

    Args:
      directory: The directory of the checkpoints.
      step: The step; None: the latest whose parameters are not damaged.
      abstract_params: The shapes, dtypes and shardings of the parameters.

    Returns:
      The parameters; their step; and, in process 0, the later, damaged checkpoints.

    Raises:
      UserError: If there is no such checkpoint, it is damaged, or its parameters differ
        from the expected ones.
    """
    step, damaged = run_on_all(lambda: _choose_params(directory, step))
    step = from_primary(step)
    expected = {PARAMS: abstract_params}
    return _restore(directory / str(step), expected)[PARAMS], step, damaged


def _choose_params(directory: Path, step: int | None) -> tuple[int, list[Damaged]]:
    """Choose the step to load, in process 0; others return a placeholder.

    Only one process looks, as a concurrent run may save or remove checkpoints.
    """
    if not is_primary():
        return _NOTHING_SAVED, []
    steps = saved_steps(directory)
    if not steps:
        raise UserError(f"{directory} holds no checkpoint yet: train first")
    if step not in (None, *steps):
        saved = ", ".join(map(str, steps))
        raise UserError(f"{directory} has no step {step}, but steps {saved}")
    wanted = steps if step is None else [step]
    step, damaged = choose(directory, wanted, f"{PARAMS}/")
    if step is None:
        raise UserError(f"{_listed(damaged)}: use another step or another run")
    return step, damaged


def _validation_loss(path: Path) -> float | None:
    return json.loads((path / METRICS / METRICS).read_text()).get(LOSS)


def _handler() -> ocp.StandardCheckpointHandler:
    logging.getLogger("absl").addFilter(_not_by_orbax)
    return ocp.StandardCheckpointHandler()


def _not_by_orbax(record: logging.LogRecord) -> bool:
    """Filter out Orbax's log records: advice, and tracebacks of errors it raises."""
    return "orbax" not in record.pathname


def _restore(path: Path, expected: dict[str, dict]) -> dict[str, dict]:
    """Restore the items of a checkpoint after checking the shapes of their arrays."""
    handler = _handler()
    folders = {name: path.absolute() / name for name in expected}
    with _readable(path):
        stored = {name: handler.metadata(x).tree for name, x in folders.items()}
    _check_same_arrays(path, _described(expected), _described(stored))
    with _readable(path), ocp.Checkpointer(handler) as checkpointer:
        return {
            name: checkpointer.restore(x, args=ocp.args.StandardRestore(expected[name]))
            for name, x in folders.items()
        }


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Translate errors in reading a checkpoint with valid checksums into UserError."""
    try:
        yield
    except (OSError, ValueError, KeyError, AttributeError) as error:
        reason = str(error).splitlines()[0][:300]
        raise UserError(
            f"checkpoint {path} is not damaged, but cannot be read ({reason}): use the"
            " library versions that wrote it"
        ) from error


def _described(tree: dict) -> dict[str, str]:
    """Return a description such as `float32[2, 3]` of each array, by name."""
    flat = traverse_util.flatten_dict(tree, sep="/")
    return {name: f"{x.dtype}{list(x.shape)}" for name, x in flat.items()}


def _check_same_arrays(path: Path, expected: dict, stored: dict) -> None:
    wrong = [f"{n} {expected[n]} is missing" for n in expected if n not in stored]
    wrong += [f"{n} {stored[n]} is unexpected" for n in stored if n not in expected]
    wrong += [
        f"{n} is {stored[n]}, expected {expected[n]}"
        for n in expected
        if n in stored and stored[n] != expected[n]
    ]
    if wrong:
        raise UserError(
            f"checkpoint {path} does not fit the config: {_listed(wrong)}: use the"
            " config it was saved with, or another workdir"
        )


def _listed(items: list) -> str:
    more = len(items) - NAMED_AT_MOST
    named = [str(x) for x in items[:NAMED_AT_MOST]]
    return "; ".join(named + ([f"and {more} more"] if more > 0 else []))
