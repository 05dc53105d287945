"""Progress of data preparation: a bar on a terminal, plain lines in a log."""

import sys
import time

LINE_EVERY_SECONDS = 10.0


class Progress:
    """Context that shows how many bytes of text are processed, on stderr."""

    def __init__(self, description: str):
        self._description = description
        self._bytes = 0
        self._bar = None

    def __enter__(self) -> "Progress":
        self._start = self._last_line = time.monotonic()
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(desc=self._description, unit="B", unit_scale=True)
        return self

    def add(self, num_bytes: int) -> None:
        self._bytes += num_bytes
        if self._bar is not None:
            self._bar.update(num_bytes)
        elif time.monotonic() - self._last_line > LINE_EVERY_SECONDS:
            self._print_line()

    def __exit__(self, *_) -> None:
        if self._bar is not None:
            self._bar.close()
        else:
            self._print_line()

    def _print_line(self) -> None:
        self._last_line = time.monotonic()
        megabytes, seconds = self._bytes / 1e6, self._last_line - self._start
        rate = megabytes / max(seconds, 1e-9)
        print(
            f"{self._description}: {megabytes:.1f} MB of text, {seconds:.0f} s,"
            f" {rate:.1f} MB/s",
            file=sys.stderr,
        )
