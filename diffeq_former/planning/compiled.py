"""Memory and communication of a training step compiled for virtual CPU devices."""

import jax
import numpy as np

from diffeq_former.config import Config
from diffeq_former.distributed.mesh import batch_sharding, layout, make_mesh
from diffeq_former.planning.collectives import sent_bytes
from diffeq_former.training import state
from diffeq_former.training.step import make_train_step


def compile_step(config: Config, num_devices: int):
    """Compile the training step for sequences of length `max_len`."""
    mesh = make_mesh(config.mesh, jax.devices()[:num_devices])
    tokens_BL = jax.ShapeDtypeStruct(
        (config.training.batch_size, config.model.max_len),
        np.int32,
        sharding=batch_sharding(mesh),
    )
    batch = {"inputs": tokens_BL, "targets": tokens_BL}
    step = make_train_step(config, mesh).__wrapped__
    with layout(mesh):
        return step.lower(state.abstract(config, mesh), batch).compile()


def measures(compiled) -> dict:
    """Return the memory and the sent bytes of one device, by kind."""
    analysis = compiled.memory_analysis()
    memory = {
        name: getattr(analysis, f"{name}_size_in_bytes")
        for name in ("argument", "output", "alias", "temp")
    }
    total = memory["argument"] + memory["output"] - memory["alias"] + memory["temp"]
    return {
        "memory": memory | {"total": total},
        "sent": sent_bytes(compiled.as_text()),
    }
