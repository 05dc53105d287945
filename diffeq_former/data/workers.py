"""Worker processes that produce the items of a sequence."""

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

# Launchers send them to the whole process group; the parent decides when workers end.
_SIGNALS_TO_BLOCK = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class Workers(Iterator):
    """Iterator over items from index `start`; each worker produces every `count`th.

    Every worker writes to its own pipe, which closes when the worker dies, so that its
    death is noticed at once, even in the middle of an item.

    Args:
      items: An endless, picklable sequence.
      start: The index of the first item.
      count: The number of workers.

    Raises:
      FaultError: If a worker ended.
    """

    def __init__(self, items: Sequence, start: int, count: int):
        context = multiprocessing.get_context("spawn")
        resource_tracker.ensure_running()  # beforehand, as its start unblocks signals
        self._pairs = []
        for first in range(start, start + count):
            ours, theirs = context.Pipe(duplex=False)
            arguments = (items, first, count, theirs)
            worker = context.Process(target=_produce, args=arguments, daemon=True)
            with _blocked(_SIGNALS_TO_BLOCK):
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
            raise FaultError(_describe_end(worker)) from error

    def close(self) -> None:
        """Kill the workers and wait until they are gone."""
        for worker, _ in self._pairs:
            worker.kill()  # SIGKILL also ends a worker that is suspended
        for worker, _ in self._pairs:
            worker.join(_SECONDS_TO_DIE)


def _describe_end(worker) -> str:
    code = worker.exitcode
    how = (
        f"was killed by {signal.Signals(-code).name}"
        if code is not None and code < 0
        else f"ended with exit code {code}, see above"
    )
    return f"a data worker (process {worker.pid}) {how}"


def _produce(items: Sequence, first: int, stride: int, pipe: Connection) -> None:
    """Send items to the pipe; the main function of a worker."""
    die_with_parent()
    with contextlib.suppress(BrokenPipeError):  # the parent is gone
        for number in itertools.count(first, stride):
            pipe.send(items[number])


@contextlib.contextmanager
def _blocked(signals: Sequence[signal.Signals]) -> Iterator[None]:
    """Context whose child processes start with these signals blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
