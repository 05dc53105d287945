"""A run that is asked to stop, by SIGTERM, SIGUSR1 or Ctrl-C, saves and ends.

Launchers send one of the former when the time is up or the machine is wanted back. The
handlers need no coordination service, unlike those of Orbax and JAX.
"""

import os
import signal

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopRequest:
    """Remembers that a signal came; whoever works asks for it now and then."""

    def __init__(self):
        self.signal: str | None = None  # its name

    def __call__(self) -> bool:
        return self.signal is not None

    def install(self) -> None:
        """Handles the signals from here on. To be called in the main thread.

        A process that was started to ignore one, as a shell's background process is
        with Ctrl-C, goes on to ignore it.
        """
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._remember)

    def _remember(self, number: int, _) -> None:
        self.signal = signal.Signals(number).name
        if number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
            os.write(2, b"\nstops when all is saved; Ctrl-C again ends it at once\n")
