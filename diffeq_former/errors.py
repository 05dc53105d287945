"""Exceptions that end a program with a clear message instead of a traceback."""

import errno
import importlib.util
import os
from pathlib import Path

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UserError(ValueError):
    """Wrong input. The message is one line on what is wrong and what to do instead."""


class DiskFullError(UserError):
    """The disk is full. The process skips its exit handlers, because they write."""


class OutOfMemoryError(UserError):
    """The memory of a device is exhausted. The message may have several lines."""


class TransientError(Exception):
    """A failure that is not due to wrong input; the same command may succeed later.

    The message is one line. The process skips its exit handlers, because they may wait
    for something that hangs.
    """


class Interrupted(TransientError):
    """Raised when a stop is requested while waiting for data."""


def is_disk_full(error: Exception) -> bool:
    """Return whether an error's message reports a full disk.

    Some libraries preserve only the message of the system's error.
    """
    return any(os.strerror(code) in str(error) for code in _DISK_FULL)


def require_finite(path: Path, name: str, array) -> None:
    """Raise UserError unless all values of an array that a file holds are finite."""
    import numpy as np

    if not np.isfinite(array).all():
        raise UserError(
            f"{path}: {name} has values that are not finite; use weights that are"
        )


def require(condition: bool, field: str, expected: str, value: object) -> None:
    """Raise UserError about a config field unless the condition holds."""
    if not condition:
        raise UserError(f"config.{field}: expected {expected}, got {value!r}")


def require_extra(extra: str, *packages: str, prefix: str = "") -> None:
    """Raise UserError unless the packages of an extra of setup.py are installed.

    Args:
      extra: The name of the extra.
      *packages: The names by which they are imported.
      prefix: What precedes the message, such as the setting that needs them.
    """
    for package in packages:
        found = importlib.util.find_spec(package)
        if found is None or found.origin is None:  # a folder wandb/ is no package
            raise UserError(
                f"{prefix}the package {package} is missing: pip install"
                f" -c constraints.txt -e '.[{extra}]'"
            )
