"""Runs of several processes on loopback, against one process with all the devices."""

import dataclasses
import json
import re
import signal
import time

import jax
import numpy as np
import psutil
import pytest
from cases import mesh_of
from prepared import prepare_words
from runs import STALLED_DATA, Command, tiny_config
from several import devices, ends, run, start

from diffeq_former.process_exit import STOPPED
from diffeq_former.training import checkpoint, state

NUM_STEPS = 12
WITHIN = 60  # seconds; of which most are a slow machine's
# Without programs that an interrupted run need not compile again. The first evaluation
# of each process does compile: no run ends before a signal reaches it.
FEWER = ("--config.analysis_every=0", "--config.training.sample_every=0")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    dataset = prepare_words(tmp_path_factory.mktemp("data"), seq_len=16)
    config = tiny_config(
        dataset, num_steps=NUM_STEPS, batch_size=24, eval_every=4, sample_every=12
    )
    assert NUM_STEPS * config.training.batch_size > len(dataset.rows("train")), "epochs"
    model = dataclasses.replace(config.model, num_heads=2, vocab_size=258)
    return dataclasses.replace(config, model=model, analysis_every=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def command(config, folder):
    return Command(folder, config)


def lines(workdir) -> dict[int, dict]:
    """What depends on the step alone, by step."""
    parsed = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    merged = {}
    for line in parsed:
        merged.setdefault(line["step"], {}).update(line)
    kept = ("loss", "validation/loss", "grad_norm", "update_norm", "tokens")
    return {
        k: {n: v for n, v in x.items() if n in kept or n.startswith("analysis/")}
        for k, x in merged.items()
    }


def last_params(workdir, config):
    abstract = state.abstract(config, mesh_of())
    return checkpoint.restore_latest(workdir / "checkpoints", abstract)[0].params


def assert_same_run(workdir, other, config, analysed=False):
    ours, theirs = lines(workdir), lines(other)
    assert ours.keys() == theirs.keys()
    for step, values in theirs.items():
        if not analysed:
            values = {n: x for n, x in values.items() if "analysis/" not in n}
        assert ours[step] == pytest.approx(values, rel=1e-5), step
    for a, b in zip(
        jax.tree.leaves(last_params(workdir, config)),
        jax.tree.leaves(last_params(other, config)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def alone(command, folder):
    """One process with all devices."""
    run(command, folder / "alone", 1)
    return folder / "alone"


def wait_for_step(workdir, step: int, processes: list) -> None:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        path = workdir / "metrics.jsonl"
        if path.exists() and f'"step": {step},' in path.read_text():
            return
        assert all(p.poll() is None for p in processes), ends(processes)[0].stderr
        time.sleep(0.05)
    raise AssertionError(f"no step {step}")


@pytest.mark.slow
def test_stopped_or_killed_a_run_ends_as_one_without_interruption(
    command, config, folder, alone
):
    """A signal to one of four stops all at the same step; the launcher continues.

    When process 0 of its two is killed the other ends, and it starts both again.
    """
    workdir = folder / "interrupted"
    processes = start(command, workdir, 4, flags=FEWER, data=2, fsdp=2)
    wait_for_step(workdir, 2, processes)
    processes[-1].send_signal(signal.SIGUSR1)
    results = ends(processes)
    assert {r.returncode for r in results} == {STOPPED}, results[0].stderr
    [*_, saved] = checkpoint.saved_steps(workdir / "checkpoints")
    assert f"is saved up to step {saved}" in results[0].stderr
    assert 2 <= saved < 7

    environment = devices(2) | {"RESTART_PAUSE": "0"}
    launcher = command.start(workdir, *FEWER, environment=environment, launcher=2)
    wait_for_step(workdir, 7, [launcher])
    [victim] = (
        process
        for process in psutil.Process(launcher.pid).children(recursive=True)
        if "--process_id=0" in process.cmdline()
    )
    victim.kill()
    [result] = ends([launcher])
    assert result.returncode == 0, result.stderr
    assert "process 0 exited with 137 (KILL); restart 1 of 3" in result.stderr
    [line] = re.findall(r"^\[1\] error: (.*)", result.stderr, re.MULTILINE)
    died = line.startswith("process 1 of 2 ") and "another process died" in line
    assert died or line.startswith("saving a checkpoint took too long"), line
    assert_same_run(workdir, alone, config)


@pytest.mark.slow
def test_stopped_while_one_waits_for_data(command, config, folder, alone):
    """The others have begun the step, so that nobody can save the one before.

    The same command then ends as one process does, with all that it writes.
    """
    workdir, axes = folder / "stalled", {"data": 1, "fsdp": 2, "tensor": 2}
    flags = ("--config.profile.start_step=2", "--config.profile.num_steps=2")
    timeout, scripts = "--config.data.timeout=20.0", [None, STALLED_DATA.format(0)]
    processes = start(
        command, workdir, 2, flags=(*flags, timeout), scripts=scripts, **axes
    )
    words = "waiting for data: the batch of step 1 has not arrived after 2 s\n"
    assert any(line.endswith(words) for line in processes[1].stderr)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    others, stalled = ends(processes)
    assert time.monotonic() - asked < WITHIN
    assert stalled.returncode == 1
    assert stalled.stderr.splitlines()[-1] == (
        "error: stopped while waiting for the batch of step 1: no checkpoint was saved"
        " yet; the same command continues"
    )
    assert others.returncode not in (0, 2, STOPPED)

    result = run(command, workdir, 2, flags=flags, **axes)
    assert json.loads(result.stdout)["step"] == NUM_STEPS
    assert "2 processes and 4 cpu devices" in result.stderr
    assert_same_run(workdir, alone, config, analysed=True)
    assert (workdir / "samples.txt").read_text() == (alone / "samples.txt").read_text()
    assert f"--logdir={workdir}/profile (needs" in result.stderr
    found = (workdir / "profile").rglob("*.xplane.pb")
    traced = sorted(path.relative_to(workdir).parts[1] for path in found)
    assert traced == ["process_0", "process_1"]


def test_a_folder_that_only_one_sees(command, folder):
    """The checks come before anything is compiled."""
    workdirs = [folder / "here", folder / "there"]
    for result in ends(start(command, workdirs, 2)):
        assert result.returncode == 2, result.stderr
        last_line = result.stderr.splitlines()[-1]
        assert last_line.startswith(f"error: the folder {folder}")
        assert "is not the same in process 1 as in 0: use one that all" in last_line
