"""Processes that make the items of a sequence."""

import contextlib
import itertools
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection

from diffeq_former.data.processes import die_with_parent
from diffeq_former.errors import FaultError

_SECONDS_TO_DIE = 5

# They go to all processes of a group; this one decides when its workers end.
_NOT_FOR_WORKERS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class Workers(Iterator):
    """The items from `start` on, in order; each worker makes every `count`th.

    Every worker has a pipe of its own, which it fills and which closes when it dies,
    so a dead worker is noticed at once, also in the middle of an item.

    Raises:
      FaultError: if a worker ended.
    """

    def __init__(self, items: Sequence, start: int, count: int):
        context = multiprocessing.get_context("spawn")
        resource_tracker.ensure_running()  # as it starts it unblocks signals
        self._pairs = []
        for first in range(start, start + count):
            ours, theirs = context.Pipe(duplex=False)
            arguments = (items, first, count, theirs)
            worker = context.Process(target=_make, args=arguments, daemon=True)
            with _blocked(_NOT_FOR_WORKERS):
                worker.start()
            theirs.close()
            self._pairs.append((worker, ours))
        self._turns = itertools.cycle(self._pairs)

    def __next__(self):
        worker, pipe = next(self._turns)
        try:
            return pipe.recv()
        except (EOFError, OSError) as error:
            worker.join(_SECONDS_TO_DIE)
            raise FaultError(_end_of(worker)) from error

    def close(self) -> None:
        for worker, _ in self._pairs:
            worker.kill()  # also if it is stopped
        for worker, _ in self._pairs:
            worker.join(_SECONDS_TO_DIE)


def _end_of(worker) -> str:
    code = worker.exitcode
    how = (
        f"was killed by {signal.Signals(-code).name}"
        if code is not None and code < 0
        else f"ended with exit code {code}, see above"
    )
    return f"a data worker (process {worker.pid}) {how}"


def _make(items: Sequence, first: int, stride: int, pipe: Connection) -> None:
    die_with_parent()
    with contextlib.suppress(BrokenPipeError):  # the parent is gone
        for number in itertools.count(first, stride):
            pipe.send(items[number])


@contextlib.contextmanager
def _blocked(signals: Sequence[signal.Signals]) -> Iterator[None]:
    """A process that is started in here never gets these signals."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
