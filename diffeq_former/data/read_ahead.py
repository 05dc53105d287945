"""Items of a sequence, made before they are asked for."""

import contextlib
import itertools
import math
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import util

from diffeq_former.data.workers import Workers
from diffeq_former.errors import FaultError, Interrupted

_SECONDS_TO_STOP = 5
_PATIENCES = 10  # in a timeout; a line after each
_SECONDS_TO_ASK = 0.2  # again whether to stop


class ReadAhead(Iterator):
    """The items from `start` on, in order, made by a thread or by worker processes.

    `close` ends them; so do dropping it and the end of the program.

    Args:
      items: Endless; with workers, travels to them.
      start: Number of the first.
      num_workers: Processes; 0: a thread of this one makes the items.
      num_ahead: How many wait to be taken, at most.
      timeout: Seconds after which an item that did not come is given up; None: never.
      what: What an item is called, from its number.
      should_stop: Asked while an item does not come.

    Raises:
      FaultError: if a worker ended, or an item did not come.
      Interrupted: if it was to stop before an item came.
    """

    def __init__(
        self,
        items: Sequence,
        *,
        start: int,
        num_workers: int,
        num_ahead: int,
        timeout: float | None,
        what: Callable[[int], str],
        should_stop: Callable[[], bool] = lambda: False,
    ):
        self._number, self._what, self._should_stop = start, what, should_stop
        self._patience = math.inf if timeout is None else timeout / _PATIENCES
        self._ready = queue.Queue(num_ahead)
        workers = Workers(items, start, num_workers) if num_workers else None
        made = workers or map(items.__getitem__, itertools.count(start))
        stopping = threading.Event()
        thread = threading.Thread(
            target=_fill, args=(self._ready, made, stopping), daemon=True
        )
        thread.start()
        # Called before multiprocessing waits for the workers as the program ends.
        arguments = (self._ready, workers, stopping, thread)
        self.close = util.Finalize(self, _stop, arguments, exitpriority=1)

    def __next__(self):
        if not self.close.still_active():
            raise ValueError("this is closed")
        item = self._wait()
        if isinstance(item, Exception):
            self.close()
            raise item
        self._number += 1
        return item

    def _wait(self):
        """The next item; says now and then that it has not come."""
        start, what = time.monotonic(), self._what(self._number)
        for count in itertools.count(1):
            seconds = count * self._patience
            while (left := start + seconds - time.monotonic()) > 0:
                with contextlib.suppress(queue.Empty):
                    return self._ready.get(timeout=min(left, _SECONDS_TO_ASK))
                if self._should_stop():
                    raise Interrupted(f"stopped while {what} did not come")
            if count == _PATIENCES:
                raise FaultError(
                    f"{what} did not come for {seconds:g} s (config.data.timeout)"
                )
            _say(f"waiting for data: {what} has not come for {seconds:g} s")


def _say(words: str) -> None:
    from tqdm import tqdm

    tqdm.write(words, file=sys.stderr)  # without harm to a bar


def _fill(ready: queue.Queue, made: Iterator, stopping: threading.Event) -> None:
    try:
        while not stopping.is_set():
            ready.put(next(made))
    except Exception as error:
        ready.put(error)


def _stop(ready: queue.Queue, workers: Workers | None, stopping, thread) -> None:
    stopping.set()
    if workers is not None:
        workers.close()
    while not ready.empty():  # the thread may wait for room
        ready.get_nowait()
    thread.join(_SECONDS_TO_STOP)
