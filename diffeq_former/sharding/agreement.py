"""What several processes must decide alike, or else wait for each other for ever."""

from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from diffeq_former.sharding.mesh import replicated
from diffeq_former.sharding.rules import MESH_AXES


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
