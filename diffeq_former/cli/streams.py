"""Standard streams that may be closed, full, or a pipe that nobody reads any more."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator

from diffeq_former.errors import UserError

_STDOUT, _STDERR = 1, 2  # file descriptors


def guard() -> None:
    """Let a program go on if it cannot write to stdout or stderr.

    Messages that cannot be written to stderr are dropped, and so are results whose
    reader has closed the pipe; if stdout fails otherwise, writing raises UserError.
    """
    for descriptor in range(_STDERR + 1):
        _open_if_closed(descriptor)
    for name, descriptor in (("stdout", _STDOUT), ("stderr", _STDERR)):
        stream = getattr(sys, name)
        if stream is None or isinstance(stream, io.TextIOWrapper):
            setattr(sys, name, _guarded(stream, descriptor))


def _open_if_closed(descriptor: int) -> None:
    """Open the null device in place of a closed stream, or a file gets its number."""
    try:
        os.fstat(descriptor)
    except OSError:
        os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def _guarded(stream: io.TextIOWrapper | None, descriptor: int) -> "_Stream":
    # Write whole lines to stderr, even with PYTHONUNBUFFERED: otherwise a partial line
    # of another thread may precede the last message.
    line_buffering = descriptor == _STDERR or bool(stream and stream.line_buffering)
    if stream is None:
        buffer, options = open(descriptor, "wb", closefd=False), {}
    else:
        buffer = stream.buffer
        options = {"encoding": stream.encoding, "errors": stream.errors}
    return _Stream(buffer, line_buffering=line_buffering, **options)


class _Stream(io.TextIOWrapper):
    def write(self, text: str) -> int:
        with self._failures_handled():
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        with self._failures_handled():
            super().flush()

    @contextlib.contextmanager
    def _failures_handled(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())  # for what is in the buffer, and what follows
            os.close(null)
            if self.fileno() == _STDOUT and not isinstance(error, BrokenPipeError):
                raise UserError(
                    f"stdout cannot be written ({error.strerror}): the results are lost"
                ) from error
