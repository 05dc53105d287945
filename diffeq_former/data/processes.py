"""Worker processes that do not outlive their parent process."""

import contextlib
import multiprocessing
import os
import threading


def die_with_parent() -> None:
    """Make a worker process exit when its parent dies; do nothing in other processes.

    A killed parent cannot end its workers, which would wait for it for ever.
    """
    if multiprocessing.parent_process() is not None:
        threading.Thread(target=_wait_and_exit, daemon=True).start()


def _wait_and_exit() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        multiprocessing.parent_process().join()
    os._exit(1)
