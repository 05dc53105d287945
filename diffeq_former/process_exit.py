"""Exit codes, and immediate exits for processes that would otherwise hang."""

import contextlib
import os
import sys
from typing import NoReturn

OK = 0
FAILED = 1
WRONG_INPUT = 2
STOPPED = 75  # EX_TEMPFAIL: everything is saved, the same command resumes

_STDERR = 2  # the file descriptor

_name: str | None = None  # of this process if it is one of several, otherwise None


def one_of_several(name: str) -> None:
    """Register this process as one of several, so that a failure ends it immediately.

    A normal exit would wait for the other processes, which wait for this one.

    Args:
      name: The name of the process in messages.
    """
    global _name
    _name = name


def process_name() -> str | None:
    """Return the name given to `one_of_several`; None for a single process."""
    return _name


def fail_now(message: str) -> NoReturn:
    """End the process from any thread, with one line and exit code 1."""
    exit_now(FAILED, "error: " + " ".join(message.split()))


def stop_now(message: str) -> NoReturn:
    """End the process from any thread, with one line and exit code 75."""
    exit_now(STOPPED, message)


def exit_now(code: int, message: str) -> NoReturn:
    """Print a last message and exit without running exit handlers.

    Exit handlers would write, and wait for other processes or for a save that does not
    finish. Later output of other threads, such as those of a failed save, is dropped.
    """
    with contextlib.suppress(OSError, ValueError):  # closed or full streams
        sys.stdout.flush()
    with (
        contextlib.suppress(OSError, ValueError),
        os.fdopen(os.dup(_STDERR), "w", errors="backslashreplace") as stderr,
    ):
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDERR)
        sys.stderr.flush()  # wait for a write in progress
        print(message, file=stderr)
    os._exit(code)
