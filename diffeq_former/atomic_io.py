"""Atomic output: files and directories appear only when they are complete."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from diffeq_former.errors import UserError, is_disk_full


def aside(path: Path) -> Path:
    """Return the temporary path at which `path` is written."""
    return path.absolute().with_name(f".{path.name}.partial")


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
        output.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(aside(output)):
            aside(output).touch()
            aside(output).unlink()
    except OSError as error:
        raise UserError(f"output {output}: {error.strerror}") from error


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
    check_new(output)
    partial = aside(output)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
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
