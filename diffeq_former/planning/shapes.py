"""The arrays of a model as shapes with logical axes, and the bytes of their shards.

T grid steps, S stage times of a step.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding

from diffeq_former.config import Config, ModelConfig
from diffeq_former.distributed.mesh import num_micro_batches
from diffeq_former.distributed.sharding_rules import MESH_AXES, RULES
from diffeq_former.models.blocks import BLOCKS, linear_specs
from diffeq_former.models.weight_specs import LinearSpec
from diffeq_former.ode.solvers import SOLVERS

Sizes = Mapping[str, int]  # by mesh axis


@dataclasses.dataclass(frozen=True)
class Array:
    """Shape, logical axes and bytes per entry of an array."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    itemsize: int

    def shard(
        self, sizes: Sizes, cut_by: Iterable[str] = MESH_AXES
    ) -> tuple[float, ...]:
        """Return the shape of a shard if only the mesh axes `cut_by` are used."""
        return tuple(
            n / (sizes[RULES[name]] if RULES[name] in cut_by else 1)
            for n, name in zip(self.shape, self.axes, strict=True)
        )

    def num_bytes(self, sizes: Sizes, cut_by: Iterable[str] = MESH_AXES) -> float:
        """Return the bytes of a shard if only the mesh axes `cut_by` are used."""
        return math.prod(self.shard(sizes, cut_by)) * self.itemsize

    def is_cut_by(self, axis: str) -> bool:
        """Whether the array is sharded over this mesh axis."""
        return any(RULES[name] == axis for name in self.axes)


def abstract_mesh(sizes: Sizes) -> AbstractMesh:
    """Return a mesh of these sizes without devices."""
    shape = tuple(sizes[axis] for axis in MESH_AXES)
    return AbstractMesh(shape, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def micro_batches(config: Config, sizes: Sizes) -> int:
    """Return the number of micro-batches per training step."""
    return num_micro_batches(config.training, abstract_mesh(sizes))


def shard_bytes(tree, sizes: Sizes) -> int:
    """Return the bytes of a pytree of abstract arrays that one device holds.

    The partition specs of their shardings are applied to a mesh of the given sizes.
    """
    mesh = abstract_mesh(sizes)

    def of(x) -> int:
        shape = NamedSharding(mesh, x.sharding.spec).shard_shape(x.shape)
        return math.prod(shape) * x.dtype.itemsize

    return sum(map(of, jax.tree.leaves(tree)))


def table(c: ModelConfig) -> list[Array]:
    """Return the weight table; one step's if weights are generated per step."""
    num_stages = len(SOLVERS[c.solver].nodes)
    tabulated = c.generate_weights == "tabulated"
    times = (c.num_layers if tabulated else 1, num_stages)
    compute, arrays = jnp.dtype(c.dtype).itemsize, []
    for spec in BLOCKS[c.block].weight_specs(c).values():
        if isinstance(spec, LinearSpec):
            arrays.append((spec.kernel, spec.axes, compute))
            arrays += [(spec.bias_shape, spec.bias_axes, 4)] * spec.bias
        else:
            arrays += [((spec.size,), ("norm",), 4)] * (1 + spec.shift)
    return [
        Array(times + shape, ("layers", "layers", *axes), itemsize)
        for shape, axes, itemsize in arrays
    ]


def banks(c: ModelConfig) -> list[Array]:
    """Return the banks F_e of all linear maps of a hypernetwork, in float32."""
    if c.weights != "hypernetwork":
        return []
    return [
        Array((c.time_embed_dim, *spec.kernel), ("time_embed", *spec.axes), 4)
        for spec in linear_specs(c).values()
    ]


def largest_bank(c: ModelConfig, sizes: Sizes) -> float:
    """Return the bytes of a device's shard of the largest bank; 0 without banks."""
    return max((array.num_bytes(sizes) for array in banks(c)), default=0.0)


def outer(c: ModelConfig) -> list[Array]:
    """Return embeddings and an untied head, in float32.

    Of embeddings, every device needs complete rows.
    """
    arrays = [Array((c.vocab_size, c.d_model), ("vocab", "embed"), 4)]
    if c.learned_positions:
        arrays.append(Array((c.max_len, c.d_model), ("position", "embed"), 4))
    if not BLOCKS[c.block].tied_head(c):
        arrays.append(Array((c.d_model, c.vocab_size), ("embed", "vocab"), 4))
    return arrays
