"""Which axis of the mesh cuts which logical axis of an array.

Parameters and activations name their axes when they are made. One table says for each
name along which mesh axes it is cut; None: every device holds all of it.
"""

import math
from collections.abc import Mapping

DATA, FSDP, SEQUENCE, TENSOR = "data", "fsdp", "sequence", "tensor"
MESH_AXES = (DATA, FSDP, SEQUENCE, TENSOR)  # the outermost crosses the slowest network

RULES = {
    # Activations.
    "batch": (DATA, FSDP),
    "length": SEQUENCE,
    "state": None,
    # Parameters, and the table that is generated from them.
    "embed": FSDP,
    "position": None,
    "layers": None,
    "time_embed": None,
    "time_mlp": None,
    "time_features": None,
    "time_hidden": None,
    "norm": None,
    "lora": None,
    "qkv": None,
    "head_dim": None,
    # Both.
    "heads": TENSOR,
    "kv_heads": TENSOR,
    "mlp": TENSOR,
    "vocab": TENSOR,
}

ROWS = RULES["batch"]  # the axes along which the rows of a batch are cut


def num_row_shares(sizes: Mapping[str, int]) -> int:
    """How many different shares of a batch a mesh with axes of these sizes holds."""
    return math.prod(sizes[axis] for axis in ROWS)
