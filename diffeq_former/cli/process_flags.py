"""Flags of commands that can run as several processes."""

from collections.abc import Callable

from absl import flags

from diffeq_former.distributed import startup

_COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "With several processes: HOST:PORT on which process 0 listens."
)
_NUM_PROCESSES = flags.DEFINE_integer(
    "num_processes", None, "With several processes: their number."
)
_PROCESS_ID = flags.DEFINE_integer(
    "process_id", None, "With several processes: index of this one, from 0."
)
_CONNECT_TIMEOUT = flags.DEFINE_integer(
    "connect_timeout",
    300,
    "Seconds within which all processes must connect.",
    lower_bound=1,
)
_HEARTBEAT_TIMEOUT = flags.DEFINE_integer(
    "heartbeat_timeout",
    60,
    "Seconds without a heartbeat after which a process is lost and the others stop.",
    lower_bound=1,
)


def start_from_flags(should_stop: Callable[[], bool] = lambda: False) -> None:
    """Start the distributed runtime as the flags say; see `distributed.startup`."""
    startup.start(
        _COORDINATOR.value,
        _NUM_PROCESSES.value,
        _PROCESS_ID.value,
        connect_timeout=_CONNECT_TIMEOUT.value,
        heartbeat_timeout=_HEARTBEAT_TIMEOUT.value,
        should_stop=should_stop,
    )
