"""What several processes must decide alike, or else wait for each other for ever."""

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

_MOST_BYTES = 1000  # of what a process says


def is_primary() -> bool:
    """Whether this is the one process that writes what is written once."""
    return jax.process_index() == 0


def together(function: Callable[[], T]) -> T:
    """Calls it in every process; if any meets wrong input, all raise that error."""
    result, words = None, ""
    try:
        result = function()
    except UserError as error:
        words = str(error)
        if jax.process_count() == 1:
            raise
    for process, said in enumerate(_gather(words)):
        if said:
            raise UserError(said if process == 0 else f"{said} (process {process})")
    return result


def of_primary(number: int) -> int:
    """The number that the first process gives."""
    if jax.process_count() == 1:
        return number
    return int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def _gather(words: str) -> list[str]:
    """What each process says."""
    if jax.process_count() == 1:
        return [words]
    said = np.zeros(_MOST_BYTES, np.uint8)
    encoded = words.encode()[:_MOST_BYTES]
    said[: len(encoded)] = np.frombuffer(encoded, np.uint8)
    everywhere = multihost_utils.process_allgather(said)
    return [bytes(x).rstrip(b"\0").decode(errors="ignore") for x in everywhere]


def check_same(what: str, seen: str, advice: str) -> None:
    """Raises UserError, in all processes, unless all have seen the same."""
    first, *others = _gather(hashlib.sha256(seen.encode()).hexdigest())
    different = [k for k, other in enumerate(others, start=1) if other != first]
    if different:
        named = ", ".join(map(str, different))
        raise UserError(f"{what} is not the same in process {named} as in 0: {advice}")


class AnyProcess:
    """Whether a question was answered with yes in any process.

    With several processes the answer is that to the call before: so nobody waits for
    the devices, which still have work. All must call it equally often.
    """

    def __init__(self, mesh: Mesh, question: Callable[[], bool]):
        self._question, self._pending = question, None
        self._alone = jax.process_count() == 1
        self._num_local = len(mesh.local_devices)
        self._sharding = NamedSharding(mesh, PartitionSpec(MESH_AXES))
        self._any = jax.jit(lambda flags: flags.any(), out_shardings=replicated(mesh))

    def __call__(self) -> bool:
        if self._alone:
            return self._question()
        flags = np.full(self._num_local, self._question())
        everywhere = jax.make_array_from_process_local_data(self._sharding, flags)
        before, self._pending = self._pending, self._any(everywhere)
        return before is not None and bool(before)
