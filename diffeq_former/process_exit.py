"""How a process ends: its exit codes, and at once where it would otherwise wait."""

import os
import sys
from typing import NoReturn

OK = 0
FAILED = 1
WRONG_INPUT = 2
STOPPED = 75  # EX_TEMPFAIL: everything is saved, run the same command again

_STDERR = 2  # the file descriptor

_name: str | None = None  # of this process, if it is one of several


def one_of_several(name: str) -> None:
    """End the process at once on a failure from now on.

    Otherwise it would wait, as it exits, for the others, who wait for it.
    """
    global _name
    _name = name


def process_name() -> str | None:
    """Return what `one_of_several` was given; None for a process by itself."""
    return _name


def fail_now(message: str) -> NoReturn:
    """End the process from any thread, with one line and exit code 1."""
    exit_now(FAILED, "error: " + " ".join(message.split()))


def stop_now(message: str) -> NoReturn:
    """End the process from any thread, with one line and exit code 75."""
    exit_now(STOPPED, message)


def exit_now(code: int, message: str) -> NoReturn:
    """Exit with a last message, without the exit handlers.

    They write, and wait: for other processes, or for a save that will not end. What
    other threads still write, as those of a save that failed, is dropped.
    """
    sys.stdout.flush()
    with os.fdopen(os.dup(_STDERR), "w", errors="backslashreplace") as stderr:
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDERR)
        sys.stderr.flush()  # waits for a write that has begun
        print(message, file=stderr)
    os._exit(code)
