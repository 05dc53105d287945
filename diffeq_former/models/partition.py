"""Sharding of activations and weights by logical axis names.

The rules from logical axes to mesh axes are in distributed/sharding_rules.py.
"""

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from diffeq_former.models.weight_specs import NormSpec, WeightSpec, WeightSpecs

HIDDEN = ("batch", "length", "state")
FEED_FORWARD = ("batch", "length", "mlp")
QUERIES = ("batch", "length", "heads", "head_dim")
KEYS = ("batch", None, "kv_heads", "head_dim")  # every query attends to all positions
SEGMENTS = ("batch", None)

_UNCONSTRAINED = jax.sharding.PartitionSpec.UNCONSTRAINED


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """Constrain the sharding of x to that of its logical axes; no-op without a mesh.

    Raises:
      ValueError: If no rule covers an axis name.
    """
    fallback = nn.spmd.RulesFallback.RAISE_ERROR
    return nn.with_logical_constraint(x, axes, fallback=fallback)


def num_shards(name: str) -> int:
    """Return the number of shards of a logical axis; 1 without a mesh."""
    sizes = jax.sharding.get_abstract_mesh().shape
    return math.prod(sizes[axis] for axis in _mesh_axes(name))


def shard_index(name: str) -> jax.Array | int:
    """Return the number of the shard, within a function of `shard_map_kernel`."""
    axes = _mesh_axes(name)
    return jax.lax.axis_index(axes) if axes else 0


def sharding_of(*names: str | None) -> jax.sharding.NamedSharding:
    """Return the sharding of an array with these logical axes on the current mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return jax.sharding.NamedSharding(mesh, nn.logical_to_mesh_axes(names))


def shard_map_kernel(
    function: Callable, axes: tuple[tuple, ...], result_axes: tuple[str | None, ...]
) -> Callable:
    """Wrap a function so that each device computes it on its own shards.

    This is for kernels that XLA cannot partition. Without a mesh, the function is
    returned unchanged.

    Args:
      function: Takes arrays (or None) and returns one array.
      axes: The logical axes of each argument, or a tree of partition specs.
      result_axes: The logical axes of the result.
    """
    if not nn.get_logical_axis_rules():
        return function
    return jax.shard_map(
        function,
        in_specs=tuple(
            nn.logical_to_mesh_axes(names) if isinstance(names, tuple) else names
            for names in axes
        ),
        out_specs=nn.logical_to_mesh_axes(result_axes),
        check_vma=False,  # kernels do not annotate how their results vary
    )


def map_shards(function: Callable) -> Callable:
    """Map a function over batch shards, the leading axis of its arguments.

    Each shard is computed on the devices that hold it, so that within the function the
    batch is not sharded.
    """
    if not (axes := _mesh_axes("batch")):
        return jax.vmap(function)

    def apart(*arguments):
        with _batch_not_sharded():
            return function(*arguments)

    mapped = jax.vmap(apart, spmd_axis_name=axes)

    def constrained(*arguments):
        results = mapped(*arguments)
        return jax.tree.map(
            lambda x: constrain(x, "batch", *[_UNCONSTRAINED] * (x.ndim - 1)), results
        )

    return constrained


def copy_per_shard(tree, reduce_dtype: DTypeLike):
    """Return a tree of arrays [N, ...]: one copy of each array for each batch shard.

    Gradients are then summed within each shard, and over shards once, by
    `sum_over_shards`.
    """

    @jax.custom_vjp
    def copy(x):
        copies = jnp.broadcast_to(x, (num_shards("batch"), *x.shape))
        return constrain(copies, "batch", *[_UNCONSTRAINED] * x.ndim)

    def sum_copies(_, gradient_N):
        return (sum_over_shards(gradient_N, reduce_dtype),)

    copy.defvjp(lambda x: (copy(x), None), sum_copies)
    return jax.tree.map(copy, tree)


def apply_per_shard(function: Callable, params_N, *arrays_B: jax.Array):
    """Return function(params, *arrays_B), of which each batch shard computes its part.

    Args:
      function: Takes parameters and arrays [B, ...] and returns a tree of such arrays.
      params_N: The parameters, as `copy_per_shard` returns them.
      arrays_B: The other arguments.
    """

    def of_shard(params_1, *arrays_B):
        return function(jax.tree.map(lambda x: x[0], params_1), *arrays_B)

    if not (axes := _mesh_axes("batch")):
        return of_shard(params_N, *arrays_B)
    by_batch = jax.sharding.PartitionSpec(axes)
    mapped = jax.shard_map(
        of_shard,
        in_specs=by_batch,
        out_specs=by_batch,
        axis_names=set(axes),
        check_vma=False,
    )
    with _batch_not_sharded():
        return mapped(params_N, *arrays_B)


def sum_over_shards(tree_N, reduce_dtype: DTypeLike):
    """Return the sums of arrays [N, ...] over batch shards, added in `reduce_dtype`."""

    def total(x_N):
        zero = jnp.zeros((), reduce_dtype)
        x = jax.lax.reduce(x_N.astype(reduce_dtype), zero, jax.lax.add, (0,))
        return x.astype(x_N.dtype)

    return jax.tree.map(total, tree_N)


def split_by_shard(x_B: jax.Array) -> jax.Array:
    """Reshape [B, ...] to [N, B / N, ...], with the sequences of shard n at index n."""
    N, rest = num_shards("batch"), x_B.ndim - 1
    split = x_B.reshape(N, -1, *x_B.shape[1:])
    return constrain(split, "batch", None, *[_UNCONSTRAINED] * rest)


def _batch_not_sharded():
    rules = dict(nn.get_logical_axis_rules()) | {"batch": None}
    return nn.logical_axis_rules(tuple(rules.items()))


def _mesh_axes(name: str) -> tuple[str, ...]:
    axes = dict(nn.get_logical_axis_rules()).get(name) or ()
    return (axes,) if isinstance(axes, str) else axes


def constrain_weights(specs: WeightSpecs, table: dict) -> dict:
    """Shard generated weights, with axes [T, ...], as stored weights are sharded.

    The constraint also applies to their gradients. Generation is then local to each
    device, and communication is that of a plain transformer.

    Args:
      specs: The block's linear maps and norms, by name.
      table: The weights of some or all of them.
    """
    return {
        name: {
            key: constrain(weight, "layers", *_axes(specs[name], key))
            for key, weight in weights.items()
        }
        for name, weights in table.items()
    }


def _axes(spec: WeightSpec, key: str) -> tuple[str, ...]:
    if isinstance(spec, NormSpec):
        return ("norm",)
    return {
        "kernel": spec.axes,
        "bias": spec.bias_axes,
        "lora_a": (*spec.input_axes, "lora"),
        "lora_b": ("lora", *spec.bias_axes),
    }[key]
