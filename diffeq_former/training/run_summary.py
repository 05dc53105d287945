"""The summary that a run prints before its first step."""

import jax
from jax.sharding import Mesh

from diffeq_former.config import Config
from diffeq_former.distributed.mesh import mesh_hardware
from diffeq_former.distributed.sharding_rules import SEQUENCE
from diffeq_former.models import attention_kernels
from diffeq_former.training import flops


def summarize_run(config: Config, seq_len: int, mesh: Mesh) -> str:
    """Return one line: the attention kernel in use, and the definition of MFU.

    Raises:
      UserError: If the configured attention kernel is not available.
    """
    attention = attention_kernels.describe(
        config.model, mesh_hardware(mesh), seq_len, mesh.shape[SEQUENCE]
    )
    return f"{attention}; {flops.describe(config.model, seq_len, jax.devices())}"
