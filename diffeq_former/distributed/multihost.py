"""Multi-host consistency: decisions that must be the same in all processes.

Processes that decide differently would wait for each other for ever.
"""

import hashlib
from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from diffeq_former.distributed.mesh import replicated
from diffeq_former.distributed.sharding_rules import MESH_AXES
from diffeq_former.errors import UserError

T = TypeVar("T")

_MESSAGE_BYTES = 1000  # longer messages are truncated


def is_primary() -> bool:
    """Return whether this is process 0, which writes the files of a run."""
    return jax.process_index() == 0


def run_on_all(function: Callable[[], T]) -> T:
    """Call a function in every process; if any raises UserError, all raise that error.

    Args:
      function: A function without collective operations.
    """
    result, message = None, ""
    try:
        result = function()
    except UserError as error:
        message = str(error)
        if jax.process_count() == 1:
            raise
    for process, found in enumerate(_gather(message)):
        if found:
            raise UserError(found if process == 0 else f"{found} (process {process})")
    return result


def from_primary(number: int) -> int:
    """Return the number that process 0 passes; collective."""
    if jax.process_count() == 1:
        return number
    return int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def _gather(message: str) -> list[str]:
    """Return the messages of all processes, in their order."""
    if jax.process_count() == 1:
        return [message]
    padded = np.zeros(_MESSAGE_BYTES, np.uint8)
    encoded = message.encode()[:_MESSAGE_BYTES]
    padded[: len(encoded)] = np.frombuffer(encoded, np.uint8)
    gathered = multihost_utils.process_allgather(padded)
    return [bytes(x).rstrip(b"\0").decode(errors="ignore") for x in gathered]


def check_same(what: str, seen: str, advice: str) -> None:
    """Check that a text is the same in all processes.

    Args:
      what: What is compared, for the message.
      seen: The text that this process sees.
      advice: What to do if the texts differ, for the message.

    Raises:
      UserError: In all processes, if the texts differ.
    """
    first, *others = _gather(hashlib.sha256(seen.encode()).hexdigest())
    different = [k for k, other in enumerate(others, start=1) if other != first]
    if different:
        named = ", ".join(map(str, different))
        raise UserError(f"{what} is not the same in process {named} as in 0: {advice}")


class AnyProcess:
    """Callable that returns whether a condition holds in any process.

    With several processes, a call returns the result for the previous call, so that
    it need not wait until the devices have finished their queued work. All processes
    must call it equally often.
    """

    def __init__(self, mesh: Mesh, condition: Callable[[], bool]):
        self._condition, self._pending = condition, None
        self._single_process = jax.process_count() == 1
        self._num_local = len(mesh.local_devices)
        self._sharding = NamedSharding(mesh, PartitionSpec(MESH_AXES))
        self._any = jax.jit(lambda flags: flags.any(), out_shardings=replicated(mesh))

    def __call__(self) -> bool:
        if self._single_process:
            return self._condition()
        local_flags = np.full(self._num_local, self._condition())
        flags = jax.make_array_from_process_local_data(self._sharding, local_flags)
        previous, self._pending = self._pending, self._any(flags)
        return previous is not None and bool(previous)
