"""Restoring of the latest checkpoint that is not damaged."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import orbax.checkpoint as ocp
from flax import serialization

from diffeq_former.distributed.multihost import from_primary, is_primary, run_on_all
from diffeq_former.errors import UserError
from diffeq_former.training.checkpoint.integrity import Damaged, choose
from diffeq_former.training.checkpoint.saving import (
    PARAMS,
    REST,
    check_path,
    saved_steps,
    validation_loss,
)
from diffeq_former.training.checkpoint.structure import (
    UNREADABLE,
    differences,
    listed,
    make_handler,
    reason,
)
from diffeq_former.training.state import TrainState

_NOTHING_SAVED = -1


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
    return state, validation_loss(path), damaged


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
            f"{listed(damaged)}: no checkpoint is left to resume from; use another"
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
        raise UserError(f"{listed(damaged)}: use another step or another run")
    return step, damaged


def _restore(path: Path, expected: dict[str, dict]) -> dict[str, dict]:
    """Restore the items of a checkpoint after checking the shapes of their arrays."""
    check_path(path)
    with _readable(path):
        wrong = differences(path, expected)
    if wrong:
        raise UserError(
            f"checkpoint {path} does not fit the config: {listed(wrong)}: use the"
            " config it was saved with, or another workdir"
        )
    with _readable(path), ocp.Checkpointer(make_handler()) as checkpointer:
        return {
            name: checkpointer.restore(
                path.absolute() / name, args=ocp.args.StandardRestore(tree)
            )
            for name, tree in expected.items()
        }


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Translate errors in reading a checkpoint with valid checksums into UserError."""
    try:
        yield
    except UNREADABLE as error:
        raise UserError(
            f"checkpoint {path} is not damaged, but cannot be read ({reason(error)}):"
            " use the library versions that wrote it"
        ) from error
