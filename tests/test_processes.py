"""Runs of several processes on loopback, against one process with all the devices."""

import dataclasses
import json
import signal
import time

import jax
import numpy as np
import psutil
import pytest
from cases import mesh_of
from prepared import prepare_words
from runs import Command, data_workers, tiny_config
from several import ends, run, start

from diffeq_former.cli import STOPPED
from diffeq_former.config import ProfileConfig
from diffeq_former.training import checkpoint, state

NUM_STEPS = 12
WITHIN = 60  # seconds; of which most are a slow machine's


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    dataset = prepare_words(tmp_path_factory.mktemp("data"), seq_len=16)
    config = tiny_config(
        dataset, num_steps=NUM_STEPS, batch_size=24, eval_every=6, sample_every=12
    )
    assert NUM_STEPS * config.training.batch_size > len(dataset.rows("train")), "epochs"
    model = dataclasses.replace(config.model, num_heads=2, vocab_size=258)
    return dataclasses.replace(config, model=model, analysis_every=4)


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


def assert_same_run(workdir, other, config):
    ours, theirs = lines(workdir), lines(other)
    assert ours.keys() == theirs.keys()
    for step, values in theirs.items():
        assert ours[step] == pytest.approx(values, rel=1e-5), step
    for a, b in zip(
        jax.tree.leaves(last_params(workdir, config)),
        jax.tree.leaves(last_params(other, config)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def alone(command, folder):
    """One process with eight devices."""
    run(command, folder / "alone", 1)
    return folder / "alone"


@pytest.mark.slow
def test_each_process_traces_its_own_devices(config, tmp_path):
    recorded = dataclasses.replace(config, profile=ProfileConfig(2, 2))
    result = run(Command(tmp_path, recorded), tmp_path / "run", 2)
    assert f"--logdir={tmp_path}/run/profile (with" in result.stderr
    found = (tmp_path / "run" / "profile").rglob("*.xplane.pb")
    folders = sorted(path.relative_to(tmp_path / "run").parts[1] for path in found)
    assert folders == ["process_0", "process_1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "num_processes, axes",
    [
        (2, {}),
        (4, {"data": 2, "fsdp": 4}),
        (2, {"data": 1, "fsdp": 4, "tensor": 2}),
    ],
)
def test_processes_equal_one(command, config, folder, alone, num_processes, axes):
    workdir = folder / f"{num_processes}-{'-'.join(axes)}"
    result = run(command, workdir, num_processes, **axes)
    assert json.loads(result.stdout)["step"] == NUM_STEPS
    assert f"{num_processes} processes and 8 cpu devices" in result.stderr
    assert_same_run(workdir, alone, config)
    assert (workdir / "samples.txt").read_text() == (alone / "samples.txt").read_text()


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
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_one_stops_all_at_the_same_step(
    command, config, folder, alone, number
):
    """And so the run goes on in 2, 1 and 4 processes, through the end of an epoch."""
    workdir = folder / f"signal-{number}"
    for num_processes, step in ((2, 2), (1, 5), (4, 9)):
        processes = start(command, workdir, num_processes)
        wait_for_step(workdir, step, processes)
        processes[-1].send_signal(number)
        results = ends(processes)
        assert {r.returncode for r in results} == {STOPPED}, results[0].stderr
        [*_, saved] = checkpoint.saved_steps(workdir / "checkpoints")
        assert f"holds all up to step {saved}" in results[0].stderr
        assert step <= saved < NUM_STEPS
    run(command, workdir, 2)
    assert_same_run(workdir, alone, config)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_when_one_is_killed_the_others_end(command, config, folder, alone, victim):
    workdir = folder / f"killed-{victim}"
    processes = start(command, workdir, 2)
    wait_for_step(workdir, 4, processes)
    processes[victim].kill()
    killed = time.monotonic()
    results = ends(processes)
    assert time.monotonic() - killed < WITHIN
    survivor = results[1 - victim]
    assert survivor.returncode not in (0, 2, STOPPED)
    last_line = survivor.stderr.splitlines()[-1]
    assert last_line.startswith(f"error: process {1 - victim} of 2 ")
    assert "another process died" in last_line
    run(command, workdir, 2)
    assert_same_run(workdir, alone, config)


@pytest.mark.slow
def test_the_launcher_starts_all_again_when_one_is_killed(
    command, config, folder, alone
):
    workdir = folder / "launched"
    environment = {"JAX_NUM_CPU_DEVICES": "4", "RESTART_PAUSE": "0"}
    launcher = command.start(workdir, environment=environment, launcher=2)
    wait_for_step(workdir, 4, [launcher])
    [victim] = (
        process
        for process in psutil.Process(launcher.pid).children(recursive=True)
        if "--process_id=1" in process.cmdline()
    )
    victim.kill()
    [result] = ends([launcher])
    assert result.returncode == 0, result.stderr
    assert_same_run(workdir, alone, config)


@pytest.mark.slow
def test_stopped_while_one_waits_for_data(command, config, folder, alone):
    """The others have begun the step, so that nobody can save the one before."""
    workdir = folder / "stalled"
    reading = ("--config.data.num_workers=1", "--config.data.timeout=20.0")
    processes = start(command, workdir, 2, flags=reading)
    while not (workers := data_workers(processes[1].pid)):
        assert processes[1].poll() is None, ends(processes)[1].stderr
        time.sleep(0.002)
    workers[0].send_signal(signal.SIGSTOP)
    words = "waiting for data: the batch of step 1 has not come for 2 s\n"
    assert any(line.endswith(words) for line in processes[1].stderr)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    others, stalled = ends(processes)
    assert time.monotonic() - asked < WITHIN
    assert stalled.returncode == 1
    assert stalled.stderr.splitlines()[-1] == (
        "error: stopped while the batch of step 1 did not come: no checkpoint was saved"
        " yet; the same command continues"
    )
    assert others.returncode not in (0, 2, STOPPED)
    run(command, workdir, 2)
    assert_same_run(workdir, alone, config)


def test_a_folder_that_only_one_sees(command, folder):
    """The checks come before anything is compiled."""
    workdirs = [folder / "here", folder / "there"]
    for result in ends(start(command, workdirs, 2)):
        assert result.returncode == 2, result.stderr
        last_line = result.stderr.splitlines()[-1]
        assert last_line.startswith(f"error: the folder {folder}")
        assert "is not the same in process 1 as in 0: use one that all" in last_line
