"""A run that is asked to stop, by SIGTERM or SIGUSR1, saves and ends.

Launchers send one of them when the time is up or the machine is wanted back. The
handlers need no coordination service, unlike those of Orbax and JAX.
"""

import signal

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopRequest:
    """Remembers that a signal came; whoever works asks for it now and then."""

    def __init__(self):
        self.signal: str | None = None  # its name

    def __call__(self) -> bool:
        return self.signal is not None

    def install(self) -> None:
        """Handles the signals from here on. To be called in the main thread."""
        for number in SIGNALS:
            signal.signal(number, self._remember)

    def _remember(self, number: int, _) -> None:
        self.signal = signal.Signals(number).name
