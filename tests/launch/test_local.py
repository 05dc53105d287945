"""launch/local.sh: what it starts, when it starts it again, and what it passes on."""

import contextlib
import os
import signal
import sys

import psutil
import pytest

SCRIPT = "local.sh"


def test_starts_all_and_ends_well(launcher):
    code, out, err = launcher.run("3", "--config.text=two words", ends="0")
    assert code == 0, err
    assert out == "process 0 of 3, attempt 0: 0\n"
    assert sorted(err.splitlines()) == [
        "[1] process 1 of 3, attempt 0: 0",
        "[2] process 2 of 3, attempt 0: 0",
    ]
    seen = [launcher.seen(i) for i in range(3)]
    assert {s["flags"]["config.text"] for s in seen} == {"two words"}
    [coordinator] = {s["flags"]["coordinator"] for s in seen}
    assert coordinator.startswith("127.0.0.1:")
    for i, s in enumerate(seen):
        assert s["environment"]["JAX_LOCAL_DEVICE_IDS"] == str(i)
        assert s["environment"]["JAX_COORDINATOR_BIND_ADDRESS"] == coordinator


def test_one_process_has_all_devices(launcher):
    code, _, err = launcher.run("1", ends="0")
    assert (code, err) == (0, "")
    assert "JAX_LOCAL_DEVICE_IDS" not in launcher.seen(0)["environment"]


@pytest.mark.parametrize("arguments", [[], ["0"], ["-1"], ["--config=x"], ["two"]])
def test_wrong_number(launcher, arguments):
    code, _, err = launcher.run(*arguments, ends="0")
    assert code == 2
    assert "usage:" in err and "NUM_PROCESSES" in err
    assert launcher.attempts() == 0


def test_no_python(launcher):
    code, _, err = launcher.run("2", ends="0", PYTHON="no-such-python")
    assert code == 2
    assert "no-such-python" in err


def test_restarts_after_a_crash_and_after_a_stop(launcher):
    """And kills those who wait for the process that crashed."""
    code, out, err = launcher.run("2", ends="1,75,0")
    assert code == 0, err
    assert launcher.attempts() == 3
    assert "local.sh: process 1 exited with 1; restart 1 of 3 in 0 s" in err
    assert "local.sh: stopped by another than this script; restart 2 of 3" in err
    assert not psutil.pid_exists(launcher.seen(0, attempt=0)["pid"])


def test_restarts_when_one_is_killed(launcher):
    process = launcher.start("2", ends="deaf,0")
    pids = [launcher.seen(i)["pid"] for i in range(2)]
    os.kill(pids[0], signal.SIGKILL)
    code, _, err = launcher.end(process)
    assert code == 0, err
    assert "process 0 exited with 137 (KILL); restart 1 of 3" in err
    assert launcher.attempts() == 2 and not psutil.pid_exists(pids[1])


def test_restarts_are_bounded(launcher):
    code, _, err = launcher.run("1", ends="7,7", MAX_RESTARTS="1")
    assert code == 7
    assert launcher.attempts() == 2
    assert err.endswith("process 0 exited with 7; gave up after 1 restarts\n")


def test_wrong_input_is_not_tried_again(launcher):
    code, _, err = launcher.run("2", ends="2")
    assert code == 2
    assert launcher.attempts() == 1 and "restart" not in err


@pytest.mark.parametrize(
    ("sent", "received"),
    [("SIGTERM", "SIGTERM"), ("SIGUSR1", "SIGUSR1"), ("SIGINT", "SIGTERM")],
)
def test_signals_reach_all(launcher, sent, received):
    process = launcher.start("2", ends="wait")
    for i in range(2):
        launcher.seen(i)
    process.send_signal(getattr(signal, sent))
    code, out, err = launcher.end(process)
    assert code == 75, err
    assert launcher.attempts() == 1
    assert f"asked by {received}" in out
    assert f"[1] asked by {received}" in err


def test_signal_before_python_handles_it(launcher):
    """Nothing is lost then, as nothing was done."""
    slow = launcher.folder / "python"
    slow.write_text(
        '#!/bin/bash\n[ "$1" = -m ] && echo slow && exec sleep 1000\n'
        f'exec {sys.executable} "$@"\n'
    )
    slow.chmod(0o755)
    process = launcher.start("1", ends="0", PYTHON=str(slow))
    assert process.stdout.readline() == "slow\n"
    process.send_signal(signal.SIGTERM)
    assert launcher.end(process)[0] == 75


def test_ctrl_c_reaches_the_group_and_twice_kills(launcher):
    process = launcher.start("2", ends="deaf")
    pids = [launcher.seen(i)["pid"] for i in range(2)]
    os.killpg(process.pid, signal.SIGINT)
    assert "[1] asked by SIGTERM\n" in process.stderr
    assert all(psutil.pid_exists(pid) for pid in pids)
    os.killpg(process.pid, signal.SIGINT)
    code, _, _ = launcher.end(process)
    assert code == 137
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_signal_before_a_restart(launcher):
    process = launcher.start("1", ends="1,0", RESTART_PAUSE="1000")
    assert any("restart 1 of 3 in 1000 s" in line for line in process.stderr)
    process.send_signal(signal.SIGTERM)
    assert launcher.end(process)[0] == 75
    assert launcher.attempts() == 1


def test_real_processes_meet_again(launcher):
    """With JAX: one is killed. Ctrl-C is one request to those of the second attempt.

    In a terminal it goes to the processes as well, which leave it to the script.
    """
    process = launcher.start_sums("2", "--then=wait")
    assert process.stdout.readline() == "2.0\n", launcher.end(process)
    for child in psutil.Process(process.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # a sleep that has ended
            if "--process_id=1" in child.cmdline():
                child.kill()
    assert process.stdout.readline() == "2.0\n", launcher.end(process)
    os.killpg(process.pid, signal.SIGINT)
    code, out, err = launcher.end(process)
    assert (code, out) == (75, "SIGTERM\n"), err
    assert "process 1 exited with 137 (KILL); restart 1 of 3" in err
    assert "Ctrl-C again" not in err
