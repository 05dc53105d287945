"""Translation of errors that end a run into one-line messages.

Each message names the last good checkpoint.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import jax

from diffeq_former.errors import (
    DiskFullError,
    OutOfMemoryError,
    TransientError,
    UserError,
    is_disk_full,
)
from diffeq_former.training import checkpoint, run_directory
from diffeq_former.training.divergence import Diverged


@contextlib.contextmanager
def translate_errors(workdir: Path, learning_rate: float) -> Iterator[None]:
    """Translate errors raised in this context into UserError or TransientError.

    Args:
      workdir: The run directory.
      learning_rate: The configured learning rate, for the advice after divergence.
    """
    try:
        yield
    except Diverged as diverged:
        raise UserError(
            f"{diverged}: {_last_good(workdir)}; lower config.optimizer.learning_rate"
            f" ({learning_rate:g}) in another --workdir, or with --allow_config_change"
        ) from diverged
    except UserError:
        raise
    except TransientError as error:
        raise TransientError(
            f"{error}: {_last_good(workdir)}; the same command continues"
        ) from error
    except TimeoutError as error:  # raised by Orbax, which reads the wall clock
        raise TransientError(
            "saving a checkpoint took too long, or the clock jumped meanwhile:"
            f" {_last_good(workdir)}; the same command continues"
        ) from error
    except (OSError, ValueError, RuntimeError) as error:
        if is_disk_full(error):
            raise DiskFullError(
                f"no room on the disk for {workdir}: {_last_good(workdir)}; free some"
                " space and run the same command again"
            ) from error
        if _is_out_of_memory(error):
            raise OutOfMemoryError(
                f"a device ran out of memory: {_last_good(workdir)}"
            ) from error
        raise


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether a device ran out of memory, in compilation or execution."""
    is_from_xla = isinstance(error, jax.errors.JaxRuntimeError)
    return is_from_xla and "RESOURCE_EXHAUSTED" in str(error)


def _last_good(workdir: Path) -> str:
    steps = checkpoint.saved_steps(workdir / run_directory.CHECKPOINTS)
    if not steps:
        return "no checkpoint was saved yet"
    return f"the last good checkpoint is that of step {steps[-1]}"
