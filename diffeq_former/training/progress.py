"""Training progress on stderr: a bar on a terminal, plain lines in a log."""

import shutil
import sys
import time

from tqdm import tqdm

LINE_EVERY_SECONDS = 10.0


class Progress:
    """Shows the progress from `step` to `num_steps`; prints nothing if not `shown`."""

    def __init__(self, num_steps: int, step: int = 0, shown: bool = True):
        self._num_steps, self._first, self._shown = num_steps, step, shown
        self._start, self._last_line = time.monotonic(), -LINE_EVERY_SECONDS
        self._bar = None
        if shown and sys.stderr.isatty():
            # tqdm itself shows nothing on a terminal that reports a size of 0 by 0.
            columns, rows = shutil.get_terminal_size()
            self._bar = tqdm(
                total=num_steps, initial=step, unit="step", ncols=columns, nrows=rows
            )

    def update(self, step: int, loss: float, tokens_per_second: float) -> None:
        """Show that `step` steps are done, with the current loss and throughput."""
        metrics = f"loss {loss:.4f}, {tokens_per_second:,.0f} tokens/s"
        if self._bar is not None:
            self._bar.set_postfix_str(metrics, refresh=False)
            self._bar.update(step - self._bar.n)
        elif self._line_is_due() or step == self._num_steps:
            self._last_line = time.monotonic()
            left = _clock(self._seconds_left(step))
            self.say(f"step {step}/{self._num_steps}: {metrics}, {left} left")

    def go_back(self, step: int) -> None:
        """Continue from an earlier step, after a rollback."""
        self._first, self._start = step, time.monotonic()
        if self._bar is not None:
            self._bar.update(step - self._bar.n)

    def say(self, text: str) -> None:
        """Print a line without breaking the bar."""
        if self._bar is not None:
            tqdm.write(text, file=sys.stderr)
        elif self._shown:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def _line_is_due(self) -> bool:
        return time.monotonic() - self._last_line >= LINE_EVERY_SECONDS

    def _seconds_left(self, step: int) -> float:
        elapsed = time.monotonic() - self._start
        return elapsed / max(step - self._first, 1) * (self._num_steps - step)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
