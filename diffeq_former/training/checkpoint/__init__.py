"""Checkpoints of a run: the latest few, and the few of lowest validation loss.

A checkpoint holds the whole TrainState. Nothing else changes during a run: which batch
comes next and all random keys are functions of (config.seed, state.step), and the
config, the tokenizer and `dataset.json` lie in the run directory. Parameters and the
rest are two items, so that tools read the first alone.

Saving is asynchronous and atomic. Orbax writes a folder STEP.partial; when it is
complete and has its checksums it is renamed to STEP, and only then are old checkpoints
removed. So a checkpoint that does not fit its checksums, or has none, is damaged.
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

from diffeq_former.distributed.multihost import is_primary, of_primary, together
from diffeq_former.errors import UserError
from diffeq_former.training.checkpoint import checksums
from diffeq_former.training.checkpoint.integrity import Damaged, choose
from diffeq_former.training.state import TrainState

PARAMS, REST, METRICS = "params", "training", "metrics"
LOSS = "validation_loss"
PARTIAL = ".partial"
NAMED_AT_MOST = 6
# Orbax measures it with the wall clock, which may jump: so not as little as it takes.
SECONDS_TO_SAVE = 24 * 60 * 60

_NOTHING_SAVED = -1


class Checkpoints:
    """The checkpoints in a directory, which is made. For one writer at a time."""

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
        """Starts to save; what the last save ran into is raised here or by `wait`."""
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
        """Until the last save is complete."""
        if self._saving is not None:
            saving, self._saving = self._saving, None
            saving.result()

    def remove_after(self, step: int) -> None:
        """Removes what a run that goes back to this step will save again."""
        self.wait()
        if is_primary():
            for later in saved_steps(self._directory):
                if later > step:
                    self._remove(later)

    def close(self) -> None:
        try:
            self.wait()
        finally:
            self._worker.shutdown()
            self._checkpointer.close()

    def _finish(self, step: int) -> None:
        """What follows when Orbax has written everything, in all processes."""
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
        """The steps neither latest nor best, nor without a finite validation loss."""
        losses = {}
        for step in saved_steps(self._directory):
            with contextlib.suppress(OSError, ValueError):
                loss = _validation_loss(self._path(step))
                losses[step] = math.inf if loss is None else loss
        comparable = [step for step, loss in losses.items() if math.isfinite(loss)]
        best = sorted(comparable, key=losses.get)[: self._keep_best]
        return losses.keys() - {*best, *list(losses)[-self._keep_latest :]}

    def _path(self, step: int, suffix: str = "") -> Path:
        return self._directory / f"{step}{suffix}"


def saved_steps(directory: Path) -> list[int]:
    """The steps of the checkpoints, in order."""
    paths = directory.iterdir() if directory.is_dir() else ()
    return sorted(int(path.name) for path in paths if path.name.isdecimal())


def restore_latest(
    directory: Path, abstract_state: TrainState, before: int | None = None
) -> tuple[TrainState, float | None, list[Damaged]] | None:
    """The latest undamaged state, placed as `abstract_state` says.

    With its validation loss, and the damaged checkpoints after it, which stay where
    they are. None if nothing was saved yet. If a step is named, the latest before it,
    if there is any.

    Raises:
      UserError: if all are damaged, or naming each array that is missing, unexpected or
        misshapen.
    """
    step, damaged = together(lambda: _choose_latest(directory, before))
    step = of_primary(step)
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
    """Which step to go on from: the first process looks, with the others waiting."""
    steps = saved_steps(directory)
    if before is not None:
        steps = [step for step in steps if step < before] or steps
    if not steps or not is_primary():
        return _NOTHING_SAVED, []
    step, damaged = choose(directory, steps)
    if step is None:
        raise UserError(
            f"{_listed(damaged)}: none is left to go on from; use another --workdir, or"
            f" remove {directory} to start again"
        )
    return step, damaged


def load_params(
    directory: Path, step: int | None, abstract_params: dict
) -> tuple[dict, int, list[Damaged]]:
    """Parameters, their step, and, in the first process, the damaged ones after it.

    Args:
      directory: That of the checkpoints.
      step: Which one; None: the latest whose parameters are not damaged.
      abstract_params: Shapes, types and shardings.

    Raises:
      UserError: if there is no such checkpoint, it is damaged, or its parameters are
        others.
    """
    step, damaged = together(lambda: _choose_params(directory, step))
    step = of_primary(step)
    expected = {PARAMS: abstract_params}
    return _restore(directory / str(step), expected)[PARAMS], step, damaged


def _choose_params(directory: Path, step: int | None) -> tuple[int, list[Damaged]]:
    """Which parameters to load: the first process looks, with the others waiting.

    A run that goes on meanwhile may have saved more when another looks.
    """
    if not is_primary():
        return _NOTHING_SAVED, []
    steps = saved_steps(directory)
    if not steps:
        raise UserError(f"{directory} holds no checkpoint yet: train first")
    if step not in (None, *steps):
        saved = ", ".join(map(str, steps))
        raise UserError(f"{directory} holds no step {step}, but steps {saved}")
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
    """Drops its tracebacks of errors that it raises as well, and its advice."""
    return "orbax" not in record.pathname


def _restore(path: Path, expected: dict[str, dict]) -> dict[str, dict]:
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
    try:
        yield
    except (OSError, ValueError, KeyError, AttributeError) as error:
        reason = str(error).splitlines()[0][:300]
        raise UserError(
            f"checkpoint {path} is not damaged, but cannot be read ({reason}): use the"
            " library versions that wrote it"
        ) from error


def _described(tree: dict) -> dict[str, str]:
    """Name and description, as float32[2, 3], of each array."""
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
