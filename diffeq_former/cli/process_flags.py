"""The flags of a command that may run as several processes."""

from collections.abc import Callable

from absl import flags

from diffeq_former.distributed import startup

_COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "Of several processes: HOST:PORT, where process 0 listens."
)
_NUM_PROCESSES = flags.DEFINE_integer(
    "num_processes", None, "Of several processes: how many there are."
)
_PROCESS_ID = flags.DEFINE_integer(
    "process_id", None, "Of several processes: which one this is, from 0."
)
_CONNECT_TIMEOUT = flags.DEFINE_integer(
    "connect_timeout", 300, "Seconds in which all must have come.", lower_bound=1
)
_HEARTBEAT_TIMEOUT = flags.DEFINE_integer(
    "heartbeat_timeout",
    60,
    "Seconds of silence after which a process counts as lost and the others end.",
    lower_bound=1,
)


def start_from_flags(should_stop: Callable[[], bool] = lambda: False) -> None:
    """See `distributed.startup.start`."""
    startup.start(
        _COORDINATOR.value,
        _NUM_PROCESSES.value,
        _PROCESS_ID.value,
        connect_timeout=_CONNECT_TIMEOUT.value,
        heartbeat_timeout=_HEARTBEAT_TIMEOUT.value,
        should_stop=should_stop,
    )
