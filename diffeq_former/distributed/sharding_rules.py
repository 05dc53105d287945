"""Sharding rules: over which mesh axes each logical axis of an array is sharded.

Parameters and activations name their axes when they are created. One table maps each
name to the mesh axes over which it is sharded; None: it is not sharded.
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
    # Matrices that Muon orthogonalises, each whole on one device.
    "matrices": (FSDP, TENSOR),
    # Both.
    "heads": TENSOR,
    "kv_heads": TENSOR,
    "mlp": TENSOR,
    "vocab": TENSOR,
}

ROWS = RULES["batch"]  # the mesh axes over which the sequences of a batch are sharded


def num_batch_shards(sizes: Mapping[str, int]) -> int:
    """Return the number of shards of a batch on a mesh with axes of these sizes."""
    return math.prod(sizes[axis] for axis in ROWS)
