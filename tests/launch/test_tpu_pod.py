"""launch/tpu_pod.sh, under a stand-in for gcloud."""

import os
import signal
import sys

import psutil
import pytest

SCRIPT = "tpu_pod.sh"
# Runs the command as on two hosts, and exits with the first code that is not 0.
GCLOUD = """#!/usr/bin/env python3
import os, subprocess, sys

*words, command = sys.argv[1:]
with open("gcloud.log", "a") as log:
    print(*words, file=log)
hosts = [
    subprocess.Popen(
        ["bash", "-c", command.removeprefix("--command=")],
        cwd=f"host{i}",
        env=os.environ | {"SLURM_PROCID": str(i), "SLURM_NTASKS": "2"},
    )
    for i in range(2)
]
codes = [host.wait() for host in hosts]
sys.exit(next((code if code > 0 else 128 - code for code in codes if code), 0))
"""


@pytest.fixture
def pod(launcher):
    """Two hosts with a checkout, each in its folder."""
    commands = launcher.folder / "bin"
    commands.mkdir()
    (commands / "gcloud").write_text(GCLOUD)
    (commands / "gcloud").chmod(0o755)
    for i in range(2):
        python = launcher.folder / f"host{i}" / "the checkout" / ".venv" / "bin"
        python.mkdir(parents=True)
        (python / "python").symlink_to(sys.executable)
    return {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "FOLDER": "the checkout",
    }


def test_starts_all_hosts_and_ends_well(launcher, pod):
    flag = "--config.text=it's two words"
    code, _, err = launcher.run("tpu", "zone", flag, ends="0", **pod)
    assert code == 0, err
    for i in range(2):
        assert launcher.seen(i)["flags"]["config.text"] == "it's two words"
    [call] = (launcher.folder / "gcloud.log").read_text().splitlines()
    assert call == "compute tpus tpu-vm ssh tpu --zone=zone --worker=all"


def test_restarts_and_gives_up(launcher, pod):
    code, _, err = launcher.run("tpu", "zone", ends="75,0", **pod)
    assert (code, launcher.attempts()) == (0, 2), err
    assert "tpu_pod.sh: exit code 75; restart 1 of 3 in 0 s" in err


def test_restarts_are_bounded(launcher, pod):
    bound = {"MAX_RESTARTS": "1"}
    code, _, err = launcher.run("tpu", "zone", ends="75,75", **pod | bound)
    assert (code, launcher.attempts()) == (75, 2)
    assert err.endswith("exit code 75; gave up after 1 restarts\n")


def test_no_checkout_is_wrong_input(launcher, pod):
    wrong = {"FOLDER": "elsewhere"}
    code, _, err = launcher.run("tpu", "zone", ends="0", **pod | wrong)
    assert (code, launcher.attempts()) == (2, 0), err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_all_hosts(launcher, pod, number):
    """As Ctrl-C does, which goes to all in the terminal."""
    process = launcher.start("tpu", "zone", ends="wait", **pod)
    for i in range(2):
        launcher.seen(i)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    code, out, err = launcher.end(process)
    assert (code, launcher.attempts()) == (75, 1), err
    assert out.count("asked by SIGTERM") == 2


def test_ends_what_was_left(launcher, pod):
    """The connection broke, but the process on the host went on."""
    first = launcher.start("tpu", "zone", ends="deaf,0", **pod)
    pids = [launcher.seen(i)["pid"] for i in range(2)]
    first.kill()
    code, _, err = launcher.run("tpu", "zone", ends="deaf,0", **pod)
    assert code == 0, err
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.parametrize("arguments", [[], ["tpu"], ["--config=x", "zone"]])
def test_usage(launcher, pod, arguments):
    code, _, err = launcher.run(*arguments, ends="0", **pod)
    assert code == 2 and "usage:" in err
