"""Stop requests by signal: on SIGTERM, SIGUSR1 or Ctrl-C, a run saves and exits.

Launchers send SIGTERM or SIGUSR1 when the time limit is reached or the machine is
preempted. Unlike those of Orbax and JAX, these handlers need no coordination service.
"""

import contextlib
import os
import signal

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopRequest:
    """Remembers that a signal arrived; callable, to be polled by long-running work."""

    def __init__(self):
        self.signal: str | None = None  # the name of the signal that arrived

    def __call__(self) -> bool:
        return self.signal is not None

    def install(self) -> None:
        """Install the signal handlers. To be called in the main thread.

        A signal that the process was started to ignore, as shells do with Ctrl-C for
        background processes, stays ignored.
        """
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._remember)

    def ignore(self) -> None:
        """Ignore the signals from now on, so that the exit code is that of the work."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _remember(self, number: int, _) -> None:
        self.signal = signal.Signals(number).name
        if number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
            message = b"\nstopping once all is saved; Ctrl-C again stops at once\n"
            with contextlib.suppress(OSError):
                os.write(2, message)
