"""What ends a program with one clear line: wrong input, or a fault of the machine."""

import errno
import os
from collections.abc import Iterable

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UserError(ValueError):
    """Wrong input. The message is one line: what is wrong, what to do instead."""


class DiskFullError(UserError):
    """No room on the disk. The process exits at once, as its exit handlers write."""


class OutOfMemoryError(UserError):
    """More than a device can hold. The message may have several lines."""


class FaultError(Exception):
    """No fault of the user. The message is one line; the same command may succeed.

    The process exits at once, as its exit handlers may wait for what hangs.
    """


class Interrupted(FaultError):
    """It was to stop while it waited for something that did not come."""


def is_disk_full(error: Exception) -> bool:
    """Whether it says so: libraries report the system's error only in words."""
    return any(os.strerror(code) in str(error) for code in _DISK_FULL)


def require_member(field: str, value: str, members: Iterable[str]) -> None:
    """Raises UserError unless a field of the config is one of these."""
    require(value in members, field, "one of " + ", ".join(members), value)


def require(condition: bool, field: str, expected: str, value: object) -> None:
    """Raises UserError, naming a field of the config, unless the condition holds."""
    if not condition:
        raise UserError(f"config.{field}: expected {expected}, got {value!r}")
