"""The training step compiled for a mesh, whose devices need not be present."""

from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh

from diffeq_former.config import Config
from diffeq_former.distributed.mesh import (
    batch_sharding,
    layout,
    mesh_hardware,
)
from diffeq_former.training import state
from diffeq_former.training.step import make_train_step


def compile_step(config: Config, mesh: Mesh):
    """Compile the training step for sequences of length `max_len`.

    Raises: As `programs.compile_program`.
    """
    function, arguments = training_step(config, mesh)
    with layout(mesh):
        return lower(function, mesh, *arguments).compile()


def lower(function: Callable, mesh: Mesh, *arguments):
    """Lower a jitted function that is wrapped by `on_mesh`, for the mesh's hardware."""
    traced = function.__wrapped__.trace(*arguments)
    return traced.lower(lowering_platforms=(mesh_hardware(mesh).platform,))


def training_step(config: Config, mesh: Mesh) -> tuple[Callable, tuple]:
    """Return the jitted training step, and its abstract arguments."""
    tokens_BL = tokens(config.training.batch_size, config.model.max_len, mesh)
    step = make_train_step(config, mesh)
    batch_BL = {"inputs": tokens_BL, "targets": tokens_BL}
    return step, (state.abstract(config, mesh), batch_BL)


def tokens(num_sequences: int, seq_len: int, mesh: Mesh) -> jax.ShapeDtypeStruct:
    """Return abstract token ids, sharded as a batch."""
    shape = (num_sequences, seq_len)
    return jax.ShapeDtypeStruct(shape, np.int32, sharding=batch_sharding(mesh))


def memory_bytes(compiled) -> dict[str, int]:
    """Return the memory that a program needs on one device.

    `argument` are the arrays that it is given; `temp` those that it makes and frees;
    `output` its results, of which `alias` overwrite arguments; `code` the program
    itself; `total` what all of this needs at once.
    """
    analysis = compiled.memory_analysis()
    names = {"code": "generated_code"} | {
        name: name for name in ("argument", "output", "alias", "temp")
    }
    sizes = {
        name: getattr(analysis, f"{field}_size_in_bytes")
        for name, field in names.items()
    }
    return sizes | {"total": sum(sizes.values()) - 2 * sizes["alias"]}


_FUSED_ATTENTION = {"cudnn": "__cudnn$fmha", "splash": "splash_mha"}


def attention_kernel(text: str) -> str:
    """Return the attention kernel that the text of a compiled program calls."""
    for kernel, call in _FUSED_ATTENTION.items():
        if call in text:
            return kernel
    return "xla"
