"""Locks on files and directories that end with the process, however it ends."""

import fcntl
import os
from pathlib import Path


def try_lock(path: Path) -> int | None:
    """Lock an existing file or directory for this process.

    Returns:
      The file descriptor that holds the lock until it is closed; None if another
      process holds it.

    Raises:
      OSError: If the path cannot be opened, or its file system has no such locks.
    """
    while True:
        how = os.O_RDONLY if path.is_dir() else os.O_RDWR  # as NFS needs for files
        descriptor = os.open(path, how)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # it was removed or replaced after it was opened


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
