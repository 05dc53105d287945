"""One run at a time trains into a folder.

The lock is the kernel's, on WORKDIR/lock, and ends with the process that holds it,
however that ends. The file stays; what it holds is only for the eyes.
"""

import contextlib
import fcntl
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from diffeq_former.distributed.multihost import is_primary, together
from diffeq_former.errors import UserError

LOCK = "lock"

_SECONDS_TO_DIE = 10  # which the run before may need, when this one is its restart


@contextlib.contextmanager
def locked(workdir: Path) -> Iterator[None]:
    """Holds the lock of the folder, which is made; the first process does, for all.

    Where the file system has no locks, says so and goes on.

    Raises:
      UserError: if another run holds it, and does not end within some seconds.
    """
    file = together(lambda: _lock(workdir) if is_primary() else None)
    with file or contextlib.nullcontext():
        yield


def _lock(workdir: Path) -> TextIO:
    workdir.mkdir(parents=True, exist_ok=True)
    file = (workdir / LOCK).open("a+", encoding="utf-8")
    deadline = time.monotonic() + _SECONDS_TO_DIE
    while not _try(file):
        if time.monotonic() > deadline:
            with file:
                file.seek(0)
                holder = file.read().strip()
            raise UserError(
                f"another run trains into {workdir} ({holder}): wait for its end or use"
                f" another --workdir; if there is no such process, remove {file.name}"
            )
        time.sleep(0.2)
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return file


def _try(file: TextIO) -> bool:
    """Whether no other run holds it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        print(
            f"{file.name} cannot be locked ({error.strerror}): see to it that no other"
            " run trains into this folder",
            file=sys.stderr,
        )
    return True
