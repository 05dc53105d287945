"""Checkpoints of a run: the latest few, and the few of lowest validation loss.

A checkpoint holds the whole TrainState. Nothing else changes during a run: which batch
comes next and all random keys are functions of (config.seed, state.step), and the
config, the tokenizer and `dataset.json` lie in the run directory. Parameters and the
rest are two items, so that tools read the first alone.

Saving is asynchronous and atomic: Orbax writes aside and renames, removes old
checkpoints only then, and clears away what a killed process left half-written.
"""

import contextlib
import logging
import math
from collections.abc import Iterator
from pathlib import Path

import orbax.checkpoint as ocp
from flax import serialization, traverse_util
from orbax.checkpoint import checkpoint_managers

from diffeq_former.errors import UserError
from diffeq_former.training.state import TrainState

PARAMS, REST = "params", "training"
LOSS = "validation_loss"
NAMED_AT_MOST = 6


class Checkpoints:
    """The checkpoints in a directory, which is made. For one writer at a time."""

    def __init__(self, directory: Path, keep_latest: int, keep_best: int):
        best = checkpoint_managers.BestN(
            get_metric_fn=_rank,
            reverse=True,
            n=keep_best,
            keep_checkpoints_without_metrics=False,
        )
        keep = checkpoint_managers.AnyPreservationPolicy(
            [checkpoint_managers.LatestN(keep_latest), best]
        )
        self._manager = _open(
            directory, preservation_policy=keep, cleanup_tmp_directories=True
        )

    def save(
        self, step: int, state: TrainState, validation_loss: float | None = None
    ) -> None:
        """Starts to save; what the last save ran into is raised here or by `wait`."""
        rest = serialization.to_state_dict(state)
        items = {PARAMS: rest.pop("params"), REST: rest}
        self._manager.save(
            step,
            args=_composite(ocp.args.StandardSave, items),
            metrics={} if validation_loss is None else {LOSS: validation_loss},
            force=True,
        )

    def wait(self) -> None:
        self._manager.wait_until_finished()

    def close(self) -> None:
        self._manager.close()


def saved_steps(directory: Path) -> list[int]:
    """The steps of the complete checkpoints, in order."""
    with _existing(directory) as manager:
        return sorted(manager.all_steps()) if manager else []


def restore_latest(
    directory: Path, abstract_state: TrainState
) -> tuple[TrainState, float | None] | None:
    """The latest state, placed as `abstract_state` says, and its validation loss.

    None if nothing was saved yet.

    Raises:
      UserError: naming each array that is missing, unexpected or misshapen.
    """
    with _existing(directory) as manager:
        if manager is None:
            return None
        step = manager.latest_step()
        rest = serialization.to_state_dict(abstract_state)
        expected = {PARAMS: rest.pop("params"), REST: rest}
        restored = _restore(manager, directory / str(step), expected)
        merged = restored[REST] | {"params": restored[PARAMS]}
        loss = manager.metrics(step).get(LOSS)
        return serialization.from_state_dict(abstract_state, merged), loss


def load_params(
    directory: Path, step: int | None, abstract_params: dict
) -> tuple[dict, int]:
    """The parameters of a step (None: the latest), and which step that is.

    Raises:
      UserError: if there is no such checkpoint, or its parameters are others.
    """
    with _existing(directory) as manager:
        if manager is None:
            raise UserError(f"{directory} holds no checkpoint yet: train first")
        steps = sorted(manager.all_steps())
        if step is None:
            step = steps[-1]
        if step not in steps:
            saved = ", ".join(map(str, steps))
            raise UserError(f"{directory} holds no step {step}, but steps {saved}")
        expected = {PARAMS: abstract_params}
        return _restore(manager, directory / str(step), expected)[PARAMS], step


@contextlib.contextmanager
def _existing(directory: Path) -> Iterator[ocp.CheckpointManager | None]:
    """What is there, to be read; None: no checkpoint. Changes nothing on the disk."""
    if not directory.is_dir():
        yield None
        return
    with contextlib.closing(_open(directory, create=False)) as manager:
        yield manager if manager.all_steps() else None


def _open(directory: Path, **options) -> ocp.CheckpointManager:
    logging.getLogger("absl").addFilter(_not_by_orbax)
    return ocp.CheckpointManager(
        directory.absolute(),
        item_handlers={
            name: ocp.StandardCheckpointHandler() for name in (PARAMS, REST)
        },
        options=ocp.CheckpointManagerOptions(best_fn=_rank, best_mode="min", **options),
    )


def _not_by_orbax(record: logging.LogRecord) -> bool:
    """Drops its tracebacks of errors that it raises as well, and its advice."""
    return "orbax" not in record.pathname


def _rank(metrics: dict) -> float:
    """Best is lowest; not evaluated, or not finite, is last."""
    loss = metrics.get(LOSS, math.inf)
    return loss if math.isfinite(loss) else math.inf


def _composite(arguments: type, items: dict) -> ocp.args.Composite:
    return ocp.args.Composite(**{name: arguments(x) for name, x in items.items()})


def _restore(manager: ocp.CheckpointManager, path: Path, expected: dict) -> dict:
    step = int(path.name)
    with _readable(path):
        metadata = manager.item_metadata(step)
        stored = {name: metadata[name].tree for name in expected}
    _check_same_arrays(path, _described(expected), _described(stored))
    with _readable(path):
        arguments = _composite(ocp.args.StandardRestore, expected)
        return dict(manager.restore(step, args=arguments).items())


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, AttributeError) as error:
        reason = str(error).splitlines()[0][:300]
        raise UserError(
            f"checkpoint {path} is damaged ({reason}): remove that folder to go on from"
            " the one before"
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
        more = len(wrong) - NAMED_AT_MOST
        named = wrong[:NAMED_AT_MOST] + ([f"and {more} more"] if more > 0 else [])
        raise UserError(
            f"checkpoint {path} does not fit the config: {'; '.join(named)}: use the"
            " config it was saved with, or another workdir"
        )
