"""The lock of a run directory: no two runs train in one folder at a time."""

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from diffeq_former.atomic_io import make_directory
from diffeq_former.distributed.multihost import is_primary, run_on_all
from diffeq_former.errors import UserError
from diffeq_former.locks import try_lock

LOCK = "lock"
_SECONDS_TO_DIE = 10  # how long a restarted run waits for the old one to exit


@contextlib.contextmanager
def locked(workdir: Path) -> Iterator[None]:
    """Create the folder if needed and hold its lock, in process 0 on behalf of all.

    If the file system has no locks, a warning is printed instead.

    Raises:
      UserError: If another run holds the lock and does not end within some seconds.
    """
    held = run_on_all(lambda: _lock(workdir) if is_primary() else [])
    try:
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)


def _lock(workdir: Path) -> list[int]:
    """Lock the folder and the file in it; return their file descriptors.

    The lock of the folder holds even if the file is removed, but NFS has none.
    """
    file = workdir / LOCK
    make_directory(workdir)
    file.touch()
    deadline = time.monotonic() + _SECONDS_TO_DIE
    held, errors = [], []
    for path in (workdir, file):
        try:
            while (descriptor := try_lock(path)) is None:
                if time.monotonic() > deadline:
                    holder = file.read_text("utf-8", errors="replace").strip()
                    raise UserError(
                        f"another run is training in {workdir} ({holder}): wait until"
                        " it ends, or use another --workdir"
                    )
                time.sleep(0.2)
            held.append(descriptor)
        except OSError as error:
            errors.append(error)
    if not held:
        print(
            f"{file} cannot be locked ({errors[-1].strerror}): make sure that no other"
            " run is training in this folder",
            file=sys.stderr,
        )
    file.write_text(
        f"process {os.getpid()} on {socket.gethostname()}\n", encoding="utf-8"
    )
    return held
