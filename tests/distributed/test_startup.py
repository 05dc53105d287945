"""Several real processes find each other, on loopback, or end with a clear line."""

import os
import signal
import socket
import subprocess
import sys
import time

import jax
import pytest
import several
from several import SCRIPT, free_port, place

from diffeq_former.distributed import startup
from diffeq_former.errors import UserError

TIMES = ("--connect_timeout=60", "--heartbeat_timeout=4")


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("script") / "sum.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def start(script):
    """Starts the script as one process; at the end of the test kills what is left."""
    processes = []

    def start(*flags, devices=1, **variables) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, script, *flags],
            env=os.environ | several.devices(devices) | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def end(process):
    """Its exit code, stdout and stderr."""
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def start_two(start, *flags, environment=None, devices=1):
    """Two processes, both past their first sum.

    Flags tell them where they are, or the environment does. SLURM's:
    launch/test_slurm.py.
    """
    port, processes = free_port(), []
    for i in range(2):
        places = () if environment else place(port, 2, i)
        variables = (
            {"JAX_COORDINATOR_PORT": str(port)} | environment(i) if environment else {}
        )
        processes.append(start(*places, *TIMES, *flags, devices=devices, **variables))
    for process in processes:
        assert process.stdout.readline() == f"{2.0 * devices}\n", end(process)
    return processes


def test_topology_and_signals_with_open_mpi(start):
    """Process 0 introduces all; JAX leaves both signals to our handlers."""
    first, second = start_two(start, "--then=wait", environment=open_mpi, devices=2)
    first.send_signal(signal.SIGTERM)
    second.send_signal(signal.SIGUSR1)
    code, out, err = end(first)
    assert (code, out) == (75, "SIGTERM\n"), err
    introduction, _, rest = err.partition("\n")
    assert introduction == (
        f"2 processes and 4 cpu devices, 2 each; process 0 is on {socket.gethostname()}"
    )
    code, out, err = end(second)
    assert (code, out) == (75, "SIGUSR1\n"), err
    assert "processes and" not in rest + err


SLURM_TASK = {
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_NODELIST": "127.0.0.1",
    "SLURM_NTASKS": "1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
}


def open_mpi(i):
    return {
        "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://127.0.0.1:34911",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_RANK": f"{i}",
        "OMPI_COMM_WORLD_LOCAL_RANK": f"{i}",
    }


def tpu_pod(i):
    """A slice of GKE; JAX believes in the TPU, and computes on the CPU."""
    return {
        "JAX_FORCE_TPU_INIT": "1",
        "TPU_WORKER_HOSTNAMES": "127.0.0.1,127.0.0.1",
        "TPU_WORKER_ID": f"{i}",
        "MEGASCALE_COORDINATOR_ADDRESS": "127.0.0.1",
        "MEGASCALE_NUM_SLICES": "1",
        "MEGASCALE_SLICE_ID": "0",
    }


@pytest.mark.parametrize(
    "variables",
    [
        {},
        SLURM_TASK,
        {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "8"},  # a shell after salloc
        open_mpi(0) | {"OMPI_COMM_WORLD_SIZE": "1"},
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
    ],
    ids=["nothing", "one_task", "login_node", "one_rank", "pod"],
)
def test_one_process_starts_nothing(monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    startup.start(None, None, None, connect_timeout=1, heartbeat_timeout=1)
    assert not jax.distributed.is_initialized()


@pytest.mark.parametrize(
    "variables",
    [
        {"OMPI_COMM_WORLD_SIZE": "2"},
        {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
        | {"OMPI_COMM_WORLD_LOCAL_RANK": "0"},  # Open MPI 5
        {"JOB_COMPLETION_INDEX": "0", "KUBERNETES_SERVICE_HOST": "10.0.0.1"},
    ],
    ids=["other_mpi", "open_mpi_5", "indexed_job"],
)
def test_environment_does_not_tell_enough(monkeypatch, variables):
    """Else every process would train alone, all into the same folder."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="give --coordinator"):
        startup.start(None, None, None, connect_timeout=1, heartbeat_timeout=1)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((None, 2, 0), "all three"),
        (("localhost:1", None, 0), "all three"),
        (("localhost:1", 2, None), "all three"),
        (("localhost", 2, 0), "HOST:PORT"),
        ((":1234", 2, 0), "HOST:PORT"),
        (("localhost:port", 2, 0), "HOST:PORT"),
        (("localhost:65536", 2, 0), "HOST:PORT"),
        (("localhost:1", 0, 0), "--num_processes=0: expected 1 or more"),
        (("localhost:1", 2, 2), "--process_id=2: expected 0 to 1"),
        (("localhost:1", 2, -1), "--process_id=-1: expected 0 to 1"),
    ],
    ids=str,
)
def test_wrong_flags(given, words):
    with pytest.raises(UserError, match=words) as caught:
        startup.start(*given, connect_timeout=1, heartbeat_timeout=1)
    assert "\n" not in str(caught.value)


def assert_one_line(process, *parts):
    code, out, err = end(process)
    assert (code, out) == (1, "")
    assert err.startswith("error: ") and err.count("\n") == 1, err
    for part in parts:
        assert part in err


def test_some_do_not_come(start):
    """Neither; only process 0; or not the last of three."""
    alone, nowhere, port = free_port(), free_port(), free_port()
    began = time.monotonic()
    start(*place(port, 3, 0))
    first = start(*place(alone, 2, 0), "--connect_timeout=2")
    second = start(*place(nowhere, 2, 1), "--connect_timeout=2")
    until_somebody_listens(port)
    one_of_three = start(*place(port, 3, 1), "--connect_timeout=2")
    message = f"process 0 of 2 waited 2 s at 127.0.0.1:{alone} for the others, and not"
    assert_one_line(first, message)
    message = f"for process 0 and cannot reach it at 127.0.0.1:{nowhere}"
    assert_one_line(second, "process 1 of 2 waited 2 s", message)
    message = f"process 0 is reachable at 127.0.0.1:{port}, and not all of the"
    assert_one_line(one_of_three, "process 1 of 3 waited 2 s for the others", message)
    assert time.monotonic() - began < 30


def test_stopped_while_they_wait_for_the_others(start):
    """Process 0 listens, 1 calls; it stops also when 0, which came, is gone."""
    together, port = free_port(), free_port()
    flag = "--heartbeat_timeout=4"
    with socket.create_server(("127.0.0.1", port)) as server:
        caller = start(*place(port, 2, 1), flag)
        listener, other = (start(*place(together, 3, k), flag) for k in range(2))
        server.settimeout(60)
        server.accept()[0].close()
    until_somebody_listens(together)
    began = time.monotonic()
    for process in (caller, listener):
        process.send_signal(signal.SIGTERM)
    time.sleep(1)
    other.send_signal(signal.SIGTERM)
    for process, name in (
        (caller, "process 1 of 2"),
        (listener, "process 0 of 3"),
        (other, "process 1 of 3"),
    ):
        code, out, err = end(process)
        assert time.monotonic() - began < startup._SECONDS_TO_MEET + 10
        assert (code, out) == (75, ""), err
        assert err.endswith(
            f"{name} was stopped before all processes had connected: nothing had"
            " begun; the same command starts again\n"
        )
        assert process is other or err.count("\n") == 1, err


def until_somebody_listens(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_port_is_taken(start):
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        process = start(*place(port, 2, 0))
        assert_one_line(process, "process 0 of 2", f"port {port}", "is in use")


@pytest.mark.parametrize(("killed", "devices"), [(0, 1), (1, 2)])
def test_the_other_ends_when_one_is_killed(start, killed, devices):
    """By an exception of the collective, or aborted by JAX, whichever comes first."""
    processes = start_two(start, "--then=sum", devices=devices)
    began = time.monotonic()
    processes[killed].kill()
    code, _, err = end(processes[1 - killed])
    assert time.monotonic() - began < 4 + 10  # the heartbeat's time, on a busy machine
    assert code in (1, -signal.SIGABRT)
    last = err.splitlines()[-1]
    assert last.startswith(f"error: process {1 - killed} of 2 "), err
    assert "another process died" in last


def test_a_failure_does_not_wait_for_the_others(start):
    left = []
    for how, environment, code, words in (
        ("fail", None, 1, "error: process 1 of 2 failed"),
        ("refuse", tpu_pod, 2, "error: --then: expected another"),
    ):
        first, second = start_two(start, f"--then={how}", environment=environment)
        began = time.monotonic()
        returned, _, err = end(second)
        assert time.monotonic() - began < 4
        assert returned == code and err.splitlines()[-1].startswith(words), err
        assert ('KeyError: "not the user\'s fault"' in err) == (how == "fail")
        left.append(first)
    for first in left:
        returned, _, err = end(first)
        assert returned == -signal.SIGABRT
        assert err.splitlines()[-1].startswith("error: process 0 of 2 was aborted")
