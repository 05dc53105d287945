"""A run of several processes: each finds the others, or says whom it waited for.

A process learns its place from its arguments, or from what started it, as JAX reads
that: SLURM's srun, Open MPI's mpirun, a TPU pod, Kubernetes. One process alone starts
nothing.
"""

import ctypes
import dataclasses
import errno
import os
import signal
import socket
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent import futures

from diffeq_former import process_exit
from diffeq_former.errors import UserError

# For the others to come, to whom the signal may not have gone, after a request to stop.
_SECONDS_TO_MEET = 5
_FLAGS = "--coordinator=HOST:PORT, --num_processes=N and --process_id=I"


def start(
    coordinator: str | None,
    num_processes: int | None,
    process_id: int | None,
    *,
    connect_timeout: int,
    heartbeat_timeout: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> None:
    """Joins the processes of the run; to be called before JAX is asked for devices.

    Args:
      coordinator: HOST:PORT of process 0. None, as the next two: the environment tells.
      num_processes: How many there are.
      process_id: Which one this is, from 0.
      connect_timeout: In seconds. If not all have come by then, the process says whom
        it waited for and exits with 1.
      heartbeat_timeout: In seconds. When a process dies, the others are aborted
        (SIGABRT) by then; when process 0 dies, at once.
      should_stop: Asked while not all have come. If they do not come soon after it
        answered True, the process says so and exits with 75, as nothing has begun.

    Raises:
      UserError: if the three do not make sense, or the environment does not tell all.
    """
    given = (coordinator, num_processes, process_id)
    told = any(value is not None for value in given)
    place = _checked(*given) if told else _place_in_environment()
    if place is None or place.num_processes == 1:
        return
    import jax

    jax.config.update("jax_enable_preemption_service", False)  # it takes SIGTERM
    process_exit.one_of_several(str(place))
    _explain_aborts(place)
    _keep_stdout_clean()

    def connect():
        _find_coordinator(place, connect_timeout)
        jax.distributed.initialize(
            place.coordinator,
            place.num_processes,
            place.process_id,
            # Else JAX asks the environment which of the GPUs belong to this process.
            cluster_detection_method="deactivate" if told else None,
            initialization_timeout=2 * connect_timeout,  # the deadline comes before
            heartbeat_timeout_seconds=heartbeat_timeout,
        )

    _in_time(connect, place, connect_timeout, should_stop)
    _print_topology(place, jax.devices())


@dataclasses.dataclass
class _Place:
    """Which process this is."""

    num_processes: int
    process_id: int
    coordinator: str | None = None
    cluster: type | None = None  # of JAX; it knows the coordinator

    def __str__(self):
        return f"process {self.process_id} of {self.num_processes}"


def _checked(coordinator, num_processes, process_id) -> _Place:
    if None in (coordinator, num_processes, process_id):
        raise UserError(f"several processes take all three of {_FLAGS}, or none")
    host, _, port = coordinator.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 2**16):
        raise UserError(
            f"--coordinator={coordinator}: expected HOST:PORT of process 0, "
            "as in 10.0.0.1:12345"
        )
    if num_processes < 1:
        raise UserError(f"--num_processes={num_processes}: expected 1 or more")
    if not 0 <= process_id < num_processes:
        raise UserError(
            f"--process_id={process_id}: expected 0 to {num_processes - 1}, "
            f"as --num_processes={num_processes}"
        )
    return _Place(num_processes, process_id, coordinator)


def _place_in_environment() -> _Place | None:
    """What the environment tells; None: nothing about other processes."""
    from jax._src.clusters import ClusterEnv, K8sCluster

    for cluster in ClusterEnv._cluster_types:
        if cluster.opt_in_only_method:
            continue
        if cluster is K8sCluster and "JOB_COMPLETION_INDEX" not in os.environ:
            continue  # a pod by itself
        try:
            with warnings.catch_warnings(action="ignore"):
                if not cluster.is_env_present():
                    continue
            count, this = cluster.get_process_count(), cluster.get_process_id()
        except RuntimeError as error:
            raise UserError(f"{error}; or give {_FLAGS}") from error
        return _Place(count, this, cluster=cluster)
    if int(os.environ.get("OMPI_COMM_WORLD_SIZE", 1)) > 1:
        raise _not_told("OMPI_COMM_WORLD_SIZE")
    if "JOB_COMPLETION_INDEX" in os.environ:
        raise _not_told("JOB_COMPLETION_INDEX")
    return None


def _not_told(variable: str) -> UserError:
    return UserError(
        f"{variable}={os.environ[variable]} says that this is one of several processes,"
        f" and JAX cannot tell where process 0 is: give {_FLAGS}"
    )


def _find_coordinator(place: _Place, timeout: int) -> None:
    """Completes the place. Ends process 0 if its port is taken: JAX would crash."""
    if place.coordinator is None:
        port = os.environ.get("JAX_COORDINATOR_PORT")
        place.coordinator = place.cluster.get_coordinator_address(timeout, port)
    if place.process_id == 0:
        port = int(place.coordinator.rpartition(":")[2])
        try:
            socket.create_server(("", port)).close()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                message = f"port {port} of this machine is taken: choose another one"
                process_exit.fail_now(f"{place}: {message}")


def _in_time(connect: Callable, place: _Place, timeout: int, should_stop) -> None:
    """Ends the process unless it connects in time; JAX would abort it.

    JAX waits outside of Python, so in another thread: signals are handled in this one.
    """
    deadline, asked = time.monotonic() + timeout, False
    connecting = futures.ThreadPoolExecutor(1).submit(connect)
    while not futures.wait([connecting], timeout=0.2).done:
        if not asked and should_stop():
            asked = True
            deadline = min(deadline, time.monotonic() + _SECONDS_TO_MEET)
        if time.monotonic() > deadline:
            break
    connected = connecting.done() and not connecting.exception()
    if asked and not connected:
        process_exit.stop_now(
            f"{place} was stopped before all had come: nothing had begun; the same"
            " command starts again"
        )
    if not connecting.done():
        process_exit.fail_now(f"{place} waited {timeout} s {_whom_for(place)}")
    connecting.result()


def _whom_for(place: _Place) -> str:
    if place.coordinator is None:
        return "for the address of process 0"
    if place.process_id == 0:
        return f"at {place.coordinator} for the others, and not all of them came"
    host, _, port = place.coordinator.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError as error:
        return f"for process 0 and cannot reach it at {place.coordinator}: {error}"
    return (
        f"for the others: process 0 is there, at {place.coordinator}, and not all the "
        "rest came"
    )


def _explain_aborts(place: _Place) -> None:
    """Puts a clear last line below the stack trace with which JAX aborts a process.

    JAX's C++ code aborts from threads of its own. Python runs its handlers in the main
    thread, which never wakes up again, so this one is set past Python.
    """
    line = (
        f"error: {place} was aborted, for the reason above; where the distributed "
        "service says so, another process died or cannot be reached\n"
    ).encode()

    global _abort_handler  # keeps it alive
    _abort_handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: os.write(2, line))
    ctypes.CDLL(None).signal(signal.SIGABRT, _abort_handler)


def _keep_stdout_clean() -> None:
    """Sends to stderr what C++ code writes to stdout: Gloo reports its connections."""
    sys.stdout.flush()
    sys.stdout = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding)
    os.dup2(2, 1)


def _print_topology(place: _Place, devices: list) -> None:
    if place.process_id == 0:
        counts = Counter(device.process_index for device in devices).values()
        each = " or ".join(str(count) for count in sorted(set(counts)))
        print(
            f"{place.num_processes} processes and {len(devices)} {devices[0].platform} "
            f"devices, {each} each; process 0 is on {socket.gethostname()}",
            file=sys.stderr,
        )
