"""Atomic output: files and directories appear only when they are complete."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from diffeq_former.errors import UserError, is_disk_full


def aside(path: Path) -> Path:
    """Return the temporary path at which `path` is written."""
    return path.absolute().with_name(f".{path.name}.partial")


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path, whose file replaces `path` when the context ends."""
    yield aside(path)
    aside(path).replace(path)


@contextlib.contextmanager
def atomic_directory(output: Path) -> Iterator[Path]:
    """Yield a temporary directory that is renamed to `output` when the context ends.

    The temporary directory of an interrupted run is removed first.

    Raises:
      UserError: If `output` exists, or the disk is full.
    """
    if output.exists():
        raise UserError(f"output {output} exists: remove it or name another directory")
    partial = aside(output)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        yield partial
        partial.rename(output)
    except (OSError, RuntimeError) as error:
        if is_disk_full(error):
            raise UserError(
                f"no room on the disk for {output} ({error}): free some"
                " space, or choose an output on another disk; no partial output remains"
            ) from error
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
