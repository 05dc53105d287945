"""Atomic output: files and directories appear only when they are complete."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from diffeq_former.errors import UserError, is_disk_full
from diffeq_former.locks import try_lock


def aside(path: Path) -> Path:
    """Return the temporary path at which `path` is written."""
    return path.absolute().with_name(f".{path.name}.partial")


def make_directory(path: Path) -> None:
    """Create a directory and its parents; if that fails, none of them is left."""
    with _removed_on_failure(path):
        path.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def _removed_on_failure(directory: Path) -> Iterator[None]:
    """Remove the directory and those parents that do not exist yet on an OSError."""
    missing = [x for x in (directory, *directory.parents) if not x.exists()]
    try:
        yield
    except OSError:
        for created in missing:
            with contextlib.suppress(OSError):
                created.rmdir()
        raise


def check_new(output: Path, suffix: str = "") -> None:
    """Check that an output can be written, before it is computed; create its folder.

    Args:
      output: The file or folder to write.
      suffix: The suffix of the name, such as `.png`; "": any.

    Raises:
      UserError: If it exists, its folder cannot be created, or its suffix is another.
    """
    if suffix and output.suffix != suffix:
        raise UserError(f"output {output}: expected a name that ends with {suffix}")
    if os.path.lexists(output):
        raise UserError(f"output {output} exists: remove it or name another")
    try:
        with _removed_on_failure(output.parent):
            output.parent.mkdir(parents=True, exist_ok=True)
            if not os.path.lexists(aside(output)):
                aside(output).touch()
                aside(output).unlink()
    except OSError as error:
        raise UserError(f"output {output}: {error.strerror}") from error


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path, whose file replaces `path` when the context ends."""
    try:
        yield aside(path)
        aside(path).replace(path)
    finally:
        aside(path).unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_directory(output: Path) -> Iterator[Path]:
    """Yield a temporary directory that is renamed to `output` when the context ends.

    It is locked, so that no other process writes the same output. What an interrupted
    process left in it is removed first.

    Raises:
      UserError: If `output` exists, another process is writing it, or the disk is full.
    """
    check_new(output)
    partial = aside(output)
    lock = _lock(partial, output)
    try:
        check_new(output)  # another process may have completed it meanwhile
        for path in partial.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
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
        if lock is not None:
            os.close(lock)


def _lock(partial: Path, output: Path) -> int | None:
    """Create and lock the temporary directory of an output.

    Returns:
      The file descriptor of the lock; None if the file system has no locks.
    """
    while True:
        partial.mkdir(exist_ok=True)
        try:
            lock = try_lock(partial)
        except FileNotFoundError:  # another process has just renamed or removed it
            continue
        except OSError:
            return None
        if lock is None:
            raise UserError(
                f"output {output}: another process is writing it; wait until it ends,"
                " or name another"
            )
        return lock
