"""Start-up of a run of several processes: connect them, or report who is missing.

A process learns its number from its arguments, or from the environment of its
launcher, as JAX reads it: SLURM's srun, Open MPI's mpirun, a TPU pod, Kubernetes. A
single process connects to nothing.
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

# After a stop request, wait this long for other processes, which may not have got one.
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
    """Connect the processes of a run; to be called before JAX is asked for devices.

    Args:
      coordinator: HOST:PORT of process 0. If this and the next two are None, they are
        read from the environment.
      num_processes: The number of processes.
      process_id: The number of this process, from 0.
      connect_timeout: Seconds to wait for all processes; after that, the process
        reports which ones it waited for and exits with 1.
      heartbeat_timeout: Seconds after the death of a process by which the others are
        aborted (SIGABRT). When process 0 dies, they are aborted at once.
      should_stop: Returns whether a stop is requested; polled while waiting. If the
        other processes do not connect soon afterwards, this one exits with 75.

    Raises:
      UserError: If the arguments are inconsistent, or the environment is incomplete.
    """
    args = (coordinator, num_processes, process_id)
    explicit = any(value is not None for value in args)
    place = _checked(*args) if explicit else _place_in_environment()
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
            # Without this, JAX reads this process's GPUs from the environment.
            cluster_detection_method="deactivate" if explicit else None,
            initialization_timeout=2 * connect_timeout,  # later than our own deadline
            heartbeat_timeout_seconds=heartbeat_timeout,
        )

    _in_time(connect, place, connect_timeout, should_stop)
    _print_topology(place, jax.devices())


@dataclasses.dataclass
class _Place:
    """The number of this process among all, and the address of process 0."""

    num_processes: int
    process_id: int
    coordinator: str | None = None
    cluster: type | None = None  # JAX's cluster environment, which has the coordinator

    def __str__(self):
        return f"process {self.process_id} of {self.num_processes}"


def _checked(coordinator, num_processes, process_id) -> _Place:
    if None in (coordinator, num_processes, process_id):
        raise UserError(f"several processes need all three of {_FLAGS}, or none")
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
    """Read the place from the environment; None if it names no other processes.

    JAX detects clusters only within `jax.distributed.initialize`, which waits for the
    coordinator, so this reads its list of cluster types, which has no public name.
    """
    from jax._src.clusters import ClusterEnv, K8sCluster

    for cluster in ClusterEnv._cluster_types:
        if cluster.opt_in_only_method:
            continue
        if cluster is K8sCluster and "JOB_COMPLETION_INDEX" not in os.environ:
            continue  # a single pod
        try:
            with warnings.catch_warnings(action="ignore"):
                if not cluster.is_env_present():
                    continue
            count, this = cluster.get_process_count(), cluster.get_process_id()
        except RuntimeError as error:
            raise UserError(f"{error}; or give {_FLAGS}") from error
        return _Place(count, this, cluster=cluster)
    if int(os.environ.get("OMPI_COMM_WORLD_SIZE", 1)) > 1:
        raise _no_coordinator("OMPI_COMM_WORLD_SIZE")
    if "JOB_COMPLETION_INDEX" in os.environ:
        raise _no_coordinator("JOB_COMPLETION_INDEX")
    return None


def _no_coordinator(variable: str) -> UserError:
    return UserError(
        f"{variable}={os.environ[variable]} says that this is one of several processes,"
        f" and JAX cannot tell where process 0 is: give {_FLAGS}"
    )


def _find_coordinator(place: _Place, timeout: int) -> None:
    """Set the coordinator; exit process 0 if its port is in use, as JAX would crash."""
    if place.coordinator is None:
        port = os.environ.get("JAX_COORDINATOR_PORT")
        place.coordinator = place.cluster.get_coordinator_address(timeout, port)
    if place.process_id == 0:
        port = int(place.coordinator.rpartition(":")[2])
        try:
            socket.create_server(("", port)).close()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                message = f"port {port} of this machine is in use: choose another one"
                process_exit.fail_now(f"{place}: {message}")


def _in_time(connect: Callable, place: _Place, timeout: int, should_stop) -> None:
    """Exit with a message unless the process connects in time; JAX would abort it.

    JAX waits in C++ code; it does so in another thread, so that this one can handle
    signals.
    """
    deadline, stopping = time.monotonic() + timeout, False
    connecting = futures.ThreadPoolExecutor(1).submit(connect)
    while not futures.wait([connecting], timeout=0.2).done:
        if not stopping and should_stop():
            stopping = True
            deadline = min(deadline, time.monotonic() + _SECONDS_TO_MEET)
        if time.monotonic() > deadline:
            break
    connected = connecting.done() and not connecting.exception()
    if stopping and not connected:
        process_exit.stop_now(
            f"{place} was stopped before all processes had connected: nothing had"
            " begun; the same command starts again"
        )
    if not connecting.done():
        process_exit.fail_now(f"{place} waited {timeout} s {_whom_for(place)}")
    connecting.result()


def _whom_for(place: _Place) -> str:
    """Return which process did not connect, as far as this one can find out."""
    if place.coordinator is None:
        return "for the address of process 0"
    if place.process_id == 0:
        return f"at {place.coordinator} for the others, and not all of them connected"
    host, _, port = place.coordinator.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError as error:
        return f"for process 0 and cannot reach it at {place.coordinator}: {error}"
    return (
        f"for the others: process 0 is reachable at {place.coordinator}, and not all "
        "of the rest connected"
    )


def _explain_aborts(place: _Place) -> None:
    """Print a clear last line below the stack trace with which JAX aborts a process.

    JAX's C++ code aborts from its own threads. Python runs signal handlers in the main
    thread, which never wakes up again, so this handler is installed through libc.
    """
    line = (
        f"error: {place} was aborted, for the reason above; where the distributed "
        "service says so, another process died or cannot be reached\n"
    ).encode()

    global _abort_handler  # a reference that prevents its garbage collection
    _abort_handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: os.write(2, line))
    ctypes.CDLL(None).signal(signal.SIGABRT, _abort_handler)


def _keep_stdout_clean() -> None:
    """Redirect to stderr what C++ code writes to stdout, such as Gloo's log."""
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
