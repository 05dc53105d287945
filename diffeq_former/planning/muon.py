"""The matrices that Muon orthogonalises in a step, and the FLOPs and memory of that."""

import math

from diffeq_former.config import Config
from diffeq_former.distributed.sharding_rules import FSDP, TENSOR
from diffeq_former.models.blocks import linear_specs
from diffeq_former.models.grid import default_grid
from diffeq_former.planning import shapes
from diffeq_former.planning.shapes import Sizes
from diffeq_former.training.muon import ITERATIONS


def num_matrices(config: Config, sizes: Sizes) -> tuple[int, int]:
    """Return how many matrices there are for each of a block's linear maps.

    Returns:
      The number that is distributed over devices, a multiple of them (what is added is
      zeros); and the number that every device computes.
    """
    name, c = config.optimizer.name, config.model
    distributed, on_each = c.segments, 0
    if name == "adamw":
        return 0, 0
    if c.weights == "shared":
        return 0, 1
    if c.weights == "hypernetwork" and name == "muon":
        distributed, on_each = c.time_embed_dim, int(c.base)
    elif c.weights == "hypernetwork":
        distributed = default_grid(c).times_TS.size
    devices = sizes[FSDP] * sizes[TENSOR]
    return -(-distributed // devices) * devices, on_each


def orthogonalisation_flops(config: Config, sizes: Sizes) -> float:
    """Return the FLOPs of Muon's iterations on one device.

    Each iteration computes A = X X^T, A A and a product with X of each matrix m x n,
    m <= n.
    """
    distributed, on_each = num_matrices(config, sizes)
    of_block = 0.0
    for spec in linear_specs(config.model).values():
        m, n = sorted(spec.matrix_shape)
        apart = math.prod(spec.kernel) // (m * n)
        of_block += apart * ITERATIONS * (4 * m**2 * n + 2 * m**3)
    return (distributed / (sizes[FSDP] * sizes[TENSOR]) + on_each) * of_block


# Measured on a CPU: 5.3 with JAX 0.10, 3.4 with 0.12.
_COPIES = 4.2


def orthogonalisation_bytes(config: Config, sizes: Sizes) -> float:
    """Return the bytes of the matrices that are orthogonalised at a time, copied."""
    name, c = config.optimizer.name, config.model
    if name == "adamw":
        return 0.0
    if name == "muon" and c.weights == "hypernetwork":
        return _COPIES * shapes.largest_bank(c, sizes)
    copies = (4 / array.itemsize * array.num_bytes(sizes) for array in shapes.table(c))
    return _COPIES * max(copies)
