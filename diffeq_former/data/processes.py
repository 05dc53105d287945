"""Worker processes that do not outlive the process they work for."""

import contextlib
import multiprocessing
import os
import threading


def die_with_parent() -> None:
    """In a worker process, ends it when its parent is gone. Elsewhere does nothing.

    A killed parent cannot end its workers; they would wait for it for ever.
    """
    if multiprocessing.parent_process() is not None:
        threading.Thread(target=_wait_and_exit, daemon=True).start()


def _wait_and_exit() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        multiprocessing.parent_process().join()
    os._exit(1)
