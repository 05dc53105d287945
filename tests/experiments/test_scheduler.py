"""Runs in parallel, as small processes in place of trainings."""

import dataclasses
import json
import os
import re
import signal
import sys
from types import SimpleNamespace

import pytest
from runs import TINY, signal_when

from diffeq_former.errors import UserError
from diffeq_former.experiments import scheduler
from diffeq_former.experiments.scheduler import Run

# Writes its start, its cores and its end; what else it does is its flag.
CHILD = """
import os, signal, sys, time
flag, workdir = sys.argv[1], sys.argv[2].partition("=")[2]
stopped = lambda *_: (open(workdir + ".saved", "w"), os._exit(75))
if flag != "early":
    signal.signal(signal.SIGTERM, stopped)
with open(workdir + ".cores", "w") as file:
    print(time.monotonic(), sorted(os.sched_getaffinity(0)), sep=";", file=file)
if flag in ("wait", "early"):
    time.sleep(60)
if flag == "wrong":
    print("first", *range(20), "error: wrong", sep="\\n", file=sys.stderr)
    sys.exit(2)
if flag == "wrong later":
    while not os.path.exists(os.path.dirname(workdir) + "/long.cores"):
        time.sleep(0.01)
    sys.exit("error: later")
if flag == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(0.1)
with open(workdir + ".end", "w") as file:
    print(time.monotonic(), file=file)
"""


@pytest.fixture(autouse=True)
def small_processes(monkeypatch):
    def start(command, **options):
        *_, flag, workdir = command
        small = [sys.executable, "-S", "-E", "-c", CHILD, flag, workdir]
        return popen(small, **options)

    popen, null = scheduler.subprocess.Popen, scheduler.subprocess.DEVNULL
    small = SimpleNamespace(Popen=start, DEVNULL=null)
    monkeypatch.setattr(scheduler, "subprocess", small)


def train(runs, num_parallel=2, **options):
    # Any number of cores is enough for these processes.
    shares = [frozenset(os.sched_getaffinity(0))] * num_parallel
    scheduler.train(runs, shares, **{"may_diverge": False} | options)


def run_of(folder, name, flag="well", after=None):
    return Run(folder / name, (flag,), after)


def names(folder, suffix):
    return {path.stem for path in folder.glob(f"*{suffix}")}


def test_cores_are_split_into_equal_shares(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 4, 7, 8})
    assert scheduler.split_cores(1) == [{1, 2, 4, 7, 8}]
    assert scheduler.split_cores(2) == [{1, 2}, {4, 7}]
    with pytest.raises(UserError, match="--num_parallel=6: .* may use 5; use 5 or"):
        scheduler.split_cores(6)


def test_systems_that_cannot_pin(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "sched_setaffinity")
    shares = scheduler.split_cores(2)
    scheduler.train([run_of(tmp_path, "a")], shares, may_diverge=False)
    assert shares == [None, None] and names(tmp_path, ".end") == {"a"}


def test_each_run_once_on_its_cores_after_what_it_needs(tmp_path, capfd):
    """So many at a time, and not one after the other."""
    shares = scheduler.split_cores(min(2, len(os.sched_getaffinity(0))))
    base = run_of(tmp_path, "base")
    tuned = [run_of(tmp_path, f"tuned{i}", after=base) for i in range(2)]
    other = run_of(tmp_path, "other")
    scheduler.train([*tuned, tuned[0], other, base], shares, may_diverge=False)
    begun, ended, cores = {}, {}, {}
    for run in [base, *tuned, other]:
        at, text = (tmp_path / f"{run.workdir.name}.cores").read_text().split(";")
        begun[run], cores[run] = float(at), frozenset(json.loads(text))
        ended[run] = float((tmp_path / f"{run.workdir.name}.end").read_text())
    assert all(begun[run] > ended[base] for run in tuned)
    assert set(cores.values()) <= set(shares)
    at_once = [
        sum(begun[b] <= begun[a] < ended[b] and cores[a] == cores[b] for b in begun)
        for a in begun
    ]
    assert at_once == [1] * 4  # each core has one run at a time
    err = capfd.readouterr().err
    assert err.count(": well\n") == 4 and "run 4 of 4, about 0 min" in err
    if len(shares) == 2:
        assert begun[other] < ended[base] and err.count("ended after 0.0 min") == 4
    assert os.sched_getaffinity(0) >= frozenset().union(*shares)


def test_a_failure_stops_the_others_and_ends_the_report(tmp_path, capfd):
    runs = [run_of(tmp_path, "a", "wrong later"), run_of(tmp_path, "long", "wait")]
    with pytest.raises(SystemExit) as end:
        train([*runs, run_of(tmp_path, "late")])
    assert end.value.code == 1
    assert names(tmp_path, ".saved") == {"long"}
    assert names(tmp_path, ".cores") == {"a", "long"}
    *_, before, last = capfd.readouterr().err.splitlines()
    assert before == f"run 1 of 3 failed with exit code 1: {tmp_path}/a.log ends with"
    assert last == "error: later"


def test_of_a_long_log_the_last_lines_are_reported(tmp_path, capfd):
    with pytest.raises(SystemExit) as end:
        train([run_of(tmp_path, "a", "wrong")])
    assert end.value.code == 2
    *before, last = capfd.readouterr().err.splitlines()
    assert last == "error: wrong" and "19" in before and "first" not in before


def test_a_run_that_is_killed(tmp_path):
    with pytest.raises(SystemExit) as end:
        train([run_of(tmp_path, "a", "killed")], num_parallel=1)
    assert end.value.code == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("flags", "saved"), [(("wait", "early"), {"a"}), (("wait",), {"a"})]
)
def test_a_stop_reaches_the_runs(tmp_path, flags, saved):
    """Also one that cannot handle it yet, and has nothing to save."""
    handler = signal.getsignal(signal.SIGTERM)
    runs = [run_of(tmp_path, *pair) for pair in zip("ab", flags, strict=False)]
    started = {run.workdir.name for run in runs}
    late = run_of(tmp_path, "late", after=runs[0])
    with signal_when(lambda: names(tmp_path, ".cores") == started, signal.SIGTERM):
        with pytest.raises(SystemExit) as end:
            train([*runs, late], num_parallel=len(flags))
    assert end.value.code == 75
    assert names(tmp_path, ".saved") == saved
    assert names(tmp_path, ".cores") == started
    assert signal.getsignal(signal.SIGTERM) is handler


# Minutes that are left when each run starts; None: no run has ended yet that trained.
LEFT = {1: [None, None, 10, 8, 4], 2: [None, None, None, 5, 3]}


@pytest.mark.parametrize(("num_parallel", "expected"), LEFT.items())
def test_the_time_left(tmp_path, capfd, monkeypatch, num_parallel, expected):
    """Runs take 4 minutes; the first is finished and the third is half done."""
    untrained = {"a": 0, "b": 1, "c": 0.5, "d": 1, "e": 1}
    for name, step in (("a", 24), ("c", 12)):
        assert TINY.training.num_steps == 24
        (tmp_path / name / "checkpoints" / str(step)).mkdir(parents=True)
        config = json.dumps(dataclasses.asdict(TINY))
        (tmp_path / name / "config.json").write_text(config)
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    clock.sleep = lambda _: setattr(clock, "now", clock.now + 60)

    def start(command, **_):
        end = clock.now + 240 * untrained[command[-1][-1]]
        child = SimpleNamespace(returncode=0)
        child.poll = lambda: 0 if clock.now >= end else None
        return child

    monkeypatch.setattr(scheduler, "time", clock)
    monkeypatch.setattr(scheduler.subprocess, "Popen", start)
    train([run_of(tmp_path, name) for name in untrained], num_parallel)
    lines = [x for x in capfd.readouterr().err.splitlines() if x.endswith("well")]
    found = [re.search(r", about (\d+) min left: ", line) for line in lines]
    assert [match and int(match[1]) for match in found] == expected


def test_a_diverged_run_ends_a_study_unless_it_may(tmp_path, capfd):
    run = run_of(tmp_path, "a", "wrong")
    run.workdir.mkdir()
    (run.workdir / "metrics.jsonl").write_text('{"step": 1, "loss": 1}\n')
    with pytest.raises(SystemExit):  # wrong input
        train([run], may_diverge=True)
    (run.workdir / "metrics.jsonl").write_text('{"step": 1, "diverged": "so"}\n')
    with pytest.raises(SystemExit):
        train([run])
    capfd.readouterr()
    train([run, run_of(tmp_path, "b")], may_diverge=True)
    assert names(tmp_path, ".end") == {"b"}
    assert "run 1 of 1" in capfd.readouterr().err  # it is not trained again
