"""launch/slurm.sbatch, under stand-ins for SLURM's commands."""

import os
import re
import signal

import pytest
from runs import ROOT
from several import free_port

SCRIPT = "slurm.sbatch"
# Starts a process for each task, as on one node, and exits with their highest code.
SRUN = """#!/usr/bin/env python3
import os, subprocess, sys

words = sys.argv[1:]
options = [word for word in words if word.startswith("--")]
command = next(i for i, word in enumerate(words) if not word.startswith("--"))
with open("srun.log", "a") as log:
    print(*words[:command], file=log)
tasks = [
    subprocess.Popen(
        words[command:],
        env=os.environ
        | {"SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_PROCID": str(i)}
        | {"SLURM_LOCALID": str(i)},
    )
    for i in range(int(os.environ["SLURM_NTASKS"]))
]
codes = [task.wait() for task in tasks]
sys.exit(max(code if code >= 0 else 128 - code for code in codes))
"""
SCONTROL = """#!/bin/sh
echo "$@" >> scontrol.log
exit ${SCONTROL_CODE:-0}
"""


@pytest.fixture
def job(launcher):
    """What SLURM sets for a job of two tasks."""
    commands = launcher.folder / "bin"
    commands.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    return {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "31",
        "SLURM_NTASKS": "2",
        "SLURM_CPUS_PER_TASK": "8",
        "JAX_COORDINATOR_PORT": str(free_port()),
    }


def requeued(launcher) -> str:
    log = launcher.folder / "scontrol.log"
    return log.read_text() if log.exists() else ""


def test_starts_a_task_for_each_gpu(launcher, job):
    flags = "--container-image=image.sqsh --container-mounts=/shared"
    job |= {"SRUN_FLAGS": flags}
    code, _, err = launcher.run("--config.text=two words", ends="0", **job)
    assert (code, requeued(launcher)) == (0, ""), err
    seen = [launcher.seen(i) for i in range(2)]
    assert {s["flags"]["config.text"] for s in seen} == {"two words"}
    assert {s["environment"]["SRUN_CPUS_PER_TASK"] for s in seen} == {"8"}
    options = (launcher.folder / "srun.log").read_text().split()
    assert set(flags.split()) | {"--kill-on-bad-exit=0"} < set(options)


def test_time_is_up(launcher, job):
    """SLURM signals the tasks, not the script."""
    process = launcher.start(ends="wait", **job)
    for i in range(2):
        os.kill(launcher.seen(i)["pid"], signal.SIGUSR1)
    code, _, err = launcher.end(process)
    assert (code, requeued(launcher)) == (75, "requeue 31\n"), err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"SLURM_RESTART_COUNT": "50"}, "requeued 50 times, and no more"),
        ({"SCONTROL_CODE": "1"}, "all is saved, but the job cannot be requeued"),
    ],
    ids=["bound", "refused"],
)
def test_not_requeued(launcher, job, changes, words):
    code, _, err = launcher.run(ends="75", **job | changes)
    assert code == 75
    assert words in err and "the same command continues" in err
    assert ("SCONTROL_CODE" in changes) == bool(requeued(launcher))


def test_cancelled(launcher, job):
    """SLURM signals the tasks and the script; the job does not come back."""
    process = launcher.start(ends="wait", **job)
    pids = [launcher.seen(i)["pid"] for i in range(2)]
    for pid in (process.pid, *pids):
        os.kill(pid, signal.SIGTERM)
    code, _, err = launcher.end(process)
    assert (code, requeued(launcher)) == (75, ""), err


def test_crashes_restart_in_the_allocation(launcher, job):
    job |= {"SLURM_NTASKS": "1", "MAX_RESTARTS": "2"}
    code, _, err = launcher.run(ends="1,7,0", **job)
    assert (code, launcher.attempts(), requeued(launcher)) == (0, 3, ""), err
    assert "slurm.sbatch: exit code 1; restart 1 of 2" in err
    assert "slurm.sbatch: exit code 7; restart 2 of 2" in err


def test_crashes_are_bounded(launcher, job):
    job |= {"SLURM_NTASKS": "1", "MAX_RESTARTS": "1"}
    code, _, err = launcher.run(ends="1,7", **job)
    assert (code, launcher.attempts(), requeued(launcher)) == (7, 2, "")
    assert err.endswith("slurm.sbatch: exit code 7; gave up after 1 restarts\n")


def test_wrong_input_is_not_tried_again(launcher, job):
    code, _, err = launcher.run(ends="2", **job | {"SLURM_NTASKS": "1"})
    assert (code, launcher.attempts(), requeued(launcher)) == (2, 1, ""), err


def test_real_processes_meet(launcher, job):
    """With JAX, which learns all it needs from SLURM's variables."""
    code, out, err = launcher.end(launcher.start_sums(**job))
    assert (code, out.splitlines().count("2.0")) == (0, 2), err
    assert "2 processes and 2 cpu devices, 1 each" in err


def test_sbatch_reads_the_options():
    """They stand before the first command; the signal goes to the tasks (no "B:")."""
    text = (ROOT / "launch" / SCRIPT).read_text()
    head, _, rest = text.partition("\nset -u\n")
    assert "#SBATCH" not in rest
    assert all(line.startswith("#") for line in head.splitlines())
    options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(.+))?$", head, re.MULTILINE))
    assert len(options) == head.count("#SBATCH")
    assert options["signal"] == "USR1@120"
    assert options["ntasks-per-node"] == options["gpus-per-node"]
    assert {"nodes", "requeue", "time"} < set(options)
