"""Prefetching: items of a sequence are produced before they are requested."""

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
_NUM_WARNINGS = 10  # a timeout is divided into so many intervals
_POLL_SECONDS = 0.2  # between two checks whether to stop


class ReadAhead(Iterator):
    """Iterator over items, produced ahead by a thread or by worker processes.

    Thread and workers end with `close`, with the iterator's garbage collection, or with
    the program.

    Args:
      items: An endless sequence; with workers, it must be picklable.
      start: The index of the first item.
      num_workers: The number of worker processes; 0: a thread of this process.
      num_ahead: The maximum number of items that are ready and not yet taken.
      timeout: Seconds to wait for an item before giving up; None: for ever.
      what: Returns the name of an item from its index, for messages.
      should_stop: Returns whether a stop is requested; polled while waiting.

    Raises:
      FaultError: If a worker ended, or an item did not arrive in time.
      Interrupted: If a stop was requested while waiting for an item.
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
        self._interval = math.inf if timeout is None else timeout / _NUM_WARNINGS
        self._ready = queue.Queue(num_ahead)
        workers = Workers(items, start, num_workers) if num_workers else None
        produced = workers or map(items.__getitem__, itertools.count(start))
        stopping = threading.Event()
        thread = threading.Thread(
            target=_fill, args=(self._ready, produced, stopping), daemon=True
        )
        thread.start()
        # At exit, this runs before multiprocessing waits for the workers.
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
        """Return the next item; print a warning after each interval of waiting."""
        start, what = time.monotonic(), self._what(self._number)
        for count in itertools.count(1):
            seconds = count * self._interval
            while (left := start + seconds - time.monotonic()) > 0:
                with contextlib.suppress(queue.Empty):
                    return self._ready.get(timeout=min(left, _POLL_SECONDS))
                if self._should_stop():
                    raise Interrupted(f"stopped while waiting for {what}")
            if count == _NUM_WARNINGS:
                raise FaultError(
                    f"{what} did not arrive within {seconds:g} s (config.data.timeout)"
                )
            _warn(f"waiting for data: {what} has not arrived after {seconds:g} s")


def _warn(message: str) -> None:
    from tqdm import tqdm

    tqdm.write(message, file=sys.stderr)  # does not break a progress bar


def _fill(ready: queue.Queue, produced: Iterator, stopping: threading.Event) -> None:
    """Put items, or the exception that ended them, into the queue."""
    try:
        while not stopping.is_set():
            ready.put(next(produced))
    except Exception as error:
        ready.put(error)


def _stop(ready: queue.Queue, workers: Workers | None, stopping, thread) -> None:
    stopping.set()
    if workers is not None:
        workers.close()
    while not ready.empty():  # the thread may be blocked on a full queue
        ready.get_nowait()
    thread.join(_SECONDS_TO_STOP)
