"""Trains runs in processes of their own, several at a time, each on its own cores."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from diffeq_former.errors import UserError
from diffeq_former.process_exit import OK, STOPPED, WRONG_INPUT
from diffeq_former.training import checkpoint, metrics_file, run_directory
from diffeq_former.training.preemption import SIGNALS, StopRequest

_POLL_SECONDS = 0.1
_LAST_LINES = 10  # of the log of a run that failed

Cores = frozenset[int] | None  # None: the system cannot pin processes to cores


@dataclasses.dataclass(frozen=True)
class Run:
    """A training that a study needs."""

    workdir: Path
    flags: tuple[str, ...]  # for `diffeq_former.main`, without --workdir
    after: "Run | None" = None  # must be trained first, as the base of a fine-tuning

    @property
    def log(self) -> Path:
        """The file of its messages, if several runs are trained in parallel."""
        return self.workdir.with_name(f"{self.workdir.name}.log")


def split_cores(num_parallel: int) -> list[Cores]:
    """Split the cores that this process may use into equal shares.

    Raises:
      UserError: If there are fewer cores than shares.
    """
    if not hasattr(os, "sched_setaffinity"):
        return [None] * num_parallel
    cores = sorted(os.sched_getaffinity(0))
    if num_parallel > len(cores):
        raise UserError(
            f"--num_parallel={num_parallel}: each run needs a core of its own, and this"
            f" process may use {len(cores)}; use {len(cores)} or fewer"
        )
    size = len(cores) // num_parallel
    return [frozenset(cores[i * size : (i + 1) * size]) for i in range(num_parallel)]


def train(runs: Sequence[Run], shares: list[Cores], *, may_diverge: bool) -> None:
    """Train each distinct run to its end, resuming those that have been started.

    On SIGTERM, SIGUSR1 or Ctrl-C, and if a run fails, the runs in progress save and
    stop. With one share, messages of the runs go to stderr, otherwise to `Run.log`.

    Args:
      runs: The runs; those that they need first are trained, too.
      shares: The cores of each run that is trained at the same time.
      may_diverge: Continue with the other runs if one diverges.

    Raises:
      SystemExit: With 75 if a stop was requested, or the exit code of a run that failed
        (128 + N if signal N ended it).
    """
    with _stop_requests() as stop:
        code = _Scheduler(runs, shares, may_diverge, stop).run()
    if code != OK:
        raise SystemExit(code)


@contextlib.contextmanager
def _stop_requests() -> Iterator[StopRequest]:
    """Yield a stop request whose signal handlers are removed when the context ends."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    stop = StopRequest()
    stop.install()
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclasses.dataclass(frozen=True, eq=False)
class _Child:
    """A run in progress."""

    run: Run
    number: int  # of the run, in messages
    process: subprocess.Popen
    cores: Cores
    start: float  # by time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start


class _Scheduler:
    """The runs that wait, those in progress, and those that have ended."""

    def __init__(
        self,
        runs: Sequence[Run],
        shares: list[Cores],
        may_diverge: bool,
        stop: StopRequest,
    ):
        self._may_diverge, self._stop = may_diverge, stop
        needed = _with_needed(runs)
        self._ended = {run for run in needed if self._has_diverged(run)}
        self._waiting = [run for run in needed if run not in self._ended]
        # The fraction of each run's optimizer steps that it is yet to train.
        self._work = {run: _untrained(run) for run in self._waiting}
        self._free, self._running = list(shares), []
        self._num_parallel, self._num_started = len(shares), 0
        self._seconds = self._trained = 0.0  # of the runs that have ended
        self._asked_to_stop: set[_Child] = set()

    def run(self) -> int:
        """Train all runs; return the exit code."""
        code, failed = OK, None
        try:
            while self._running or (self._waiting and code == OK):
                if code == OK and self._stop():
                    code = STOPPED
                self._start_due() if code == OK else self._ask_to_stop()
                for child in self._wait():
                    found = self._end(child)
                    if found != OK and code in (OK, STOPPED):
                        code, failed = found, child
        finally:
            self._ask_to_stop()
            for child in self._running:
                child.process.wait()
        if code not in (OK, STOPPED):
            self._report_failure(failed, code)
        elif self._stop():
            print("stopped: the same command continues", file=sys.stderr, flush=True)
            code = STOPPED
        return code

    def _start_due(self) -> None:
        """Start waiting runs while there are free cores."""
        for run in list(self._waiting):
            if not self._free:
                return
            if run.after is None or run.after in self._ended:
                self._waiting.remove(run)
                self._start(run, self._free.pop(0))

    def _start(self, run: Run, cores: Cores) -> None:
        self._num_started += 1
        left, flags = self._time_left(run), " ".join(run.flags)
        self._say(self._num_started, f"{left}: {run.workdir}: {flags}")
        command = [sys.executable, "-m", "diffeq_former.main", *run.flags]
        command.append(f"--workdir={run.workdir}")
        with contextlib.ExitStack() as stack:
            stderr = None
            if self._num_parallel > 1:
                run.log.parent.mkdir(parents=True, exist_ok=True)
                stderr = stack.enter_context(run.log.open("ab"))
            stack.enter_context(_pinned(cores))
            # The run's folder has the metrics that it prints.
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=stderr
            )
        child = _Child(run, self._num_started, process, cores, time.monotonic())
        self._running.append(child)

    def _wait(self) -> list[_Child]:
        """Return the children that have ended; wait a moment if there are none."""
        ended = [child for child in self._running if child.process.poll() is not None]
        if not ended:
            time.sleep(_POLL_SECONDS)
        return ended

    def _end(self, child: _Child) -> int:
        """Return the exit code that a child calls for."""
        self._running.remove(child)
        self._free.append(child.cores)
        run, code = child.run, child.process.returncode
        if code == WRONG_INPUT and self._has_diverged(run):
            self._say(child.number, f" diverged: {run.workdir}; the others continue")
            code = OK
        elif code == OK and self._num_parallel > 1:
            minutes = child.seconds / 60
            self._say(child.number, f" ended after {minutes:.1f} min: {run.workdir}")
        if code == OK:
            self._ended.add(run)
            if self._work[run]:
                self._seconds += child.seconds
                self._trained += self._work[run]
        to_stop = self._stop() or child in self._asked_to_stop
        if to_stop and -code in SIGNALS:
            return STOPPED  # the signal came before the process could handle it
        return code if code >= 0 else 128 - code

    def _ask_to_stop(self) -> None:
        for child in set(self._running) - self._asked_to_stop:
            child.process.terminate()
            self._asked_to_stop.add(child)

    def _report_failure(self, child: _Child, code: int) -> None:
        if self._num_parallel == 1:
            return  # its messages are on stderr
        run = child.run
        self._say(child.number, f" failed with exit code {code}: {run.log} ends with")
        lines = run.log.read_text("utf-8", errors="replace").splitlines()
        print(*lines[-_LAST_LINES:], sep="\n", file=sys.stderr, flush=True)

    def _say(self, number: int, text: str) -> None:
        line = f"run {number} of {len(self._work)}{text}"
        print(line, file=sys.stderr, flush=True)

    def _has_diverged(self, run: Run) -> bool:
        return self._may_diverge and metrics_file.diverged(run.workdir)

    def _time_left(self, run: Run) -> str:
        """Return an estimate by the runs that have ended since the start."""
        if not self._trained:
            return ""
        pace = self._seconds / self._trained
        left = [pace * self._work[run] for run in [run, *self._waiting]]
        left += [
            max(0.0, pace * self._work[child.run] - child.seconds)
            for child in self._running
        ]
        at_once = max(1, min(self._num_parallel, sum(x > 0 for x in left)))
        return f", about {sum(left) / at_once / 60:.0f} min left"


def _untrained(run: Run) -> float:
    """Return the fraction of a run's optimizer steps that no checkpoint has yet."""
    steps = checkpoint.saved_steps(run.workdir / run_directory.CHECKPOINTS)
    if not steps:
        return 1.0
    num_steps = run_directory.read_config(run.workdir).training.num_steps
    return max(0.0, 1 - steps[-1] / num_steps)


def _with_needed(runs: Sequence[Run]) -> list[Run]:
    """Return the distinct runs, with those that they need."""
    found: dict[Run, None] = {}
    for run in runs:
        needed: Run | None = run
        while needed is not None:
            found[needed] = None
            needed = needed.after
    return list(found)


@contextlib.contextmanager
def _pinned(cores: Cores) -> Iterator[None]:
    """Pin the calling thread, and the processes that it starts, to these cores."""
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
