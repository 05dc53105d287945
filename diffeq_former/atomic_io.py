"""Files and directories that are written whole or not at all."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from diffeq_former.errors import UserError, is_disk_full


def aside(path: Path) -> Path:
    """Where what becomes `path` is written first."""
    return path.absolute().with_name(f".{path.name}.partial")


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Gives a path aside, whose file takes the place of `path` when all is written."""
    yield aside(path)
    aside(path).replace(path)


@contextlib.contextmanager
def complete_or_nothing(output: Path) -> Iterator[Path]:
    """Gives a directory aside that becomes `output` only when all is written.

    What an interrupted run left aside is removed first.

    Raises:
      UserError: if `output` exists, or there is no room on the disk.
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
                f"no room on the disk for {output} ({error}): free some, or name an"
                " output elsewhere; nothing was kept"
            ) from error
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
