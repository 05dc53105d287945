"""Names the axes of activations and tables; distributed/sharding_rules.py cuts them."""

import math
from collections.abc import Callable

import flax.linen as nn
import jax

from diffeq_former.models.units import Norm, Unit, Units

HIDDEN = ("batch", "length", "state")
FEED_FORWARD = ("batch", "length", "mlp")
QUERIES = ("batch", "length", "heads", "head_dim")
KEYS = ("batch", None, "kv_heads", "head_dim")  # every query needs all of them
SEGMENTS = ("batch", None)

_AS_IT_IS = jax.sharding.PartitionSpec.UNCONSTRAINED


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """Lays x out as the rules say for its axes; outside of a mesh nothing happens.

    Raises:
      ValueError: for a name that no rule covers.
    """
    fallback = nn.spmd.RulesFallback.RAISE_ERROR
    return nn.with_logical_constraint(x, axes, fallback=fallback)


def num_shares(name: str) -> int:
    """In how many parts the rules cut an axis of that name; outside of a mesh 1."""
    sizes = jax.sharding.get_abstract_mesh().shape
    return math.prod(sizes[axis] for axis in _mesh_axes(name))


def on_each_device(
    function: Callable, axes: tuple[tuple, ...], result_axes: tuple[str | None, ...]
) -> Callable:
    """The function, computed by each device for its own share of the arguments.

    For kernels that XLA cannot divide. Outside of a mesh it is the function itself.

    Args:
      function: of arrays (or None) to one array.
      axes: the names of each argument's axes.
      result_axes: of the result.
    """
    if not nn.get_logical_axis_rules():
        return function
    return jax.shard_map(
        function,
        in_specs=tuple(nn.logical_to_mesh_axes(names) for names in axes),
        out_specs=nn.logical_to_mesh_axes(result_axes),
        check_vma=False,  # kernels do not say along which axes their results vary
    )


def rows_apart(function: Callable) -> Callable:
    """Maps a function over the leading axis of its arguments: shares of the rows.

    Each share is computed where it lies; so the function sees rows that are whole.
    """
    if not (axes := _mesh_axes("batch")):
        return jax.vmap(function)
    rules = dict(nn.get_logical_axis_rules()) | {"batch": None}

    def apart(*arguments):
        with nn.logical_axis_rules(tuple(rules.items())):
            return function(*arguments)

    mapped = jax.vmap(apart, spmd_axis_name=axes)

    def constrained(*arguments):
        results = mapped(*arguments)
        return jax.tree.map(
            lambda x: constrain(x, "batch", *[_AS_IT_IS] * (x.ndim - 1)), results
        )

    return constrained


def _mesh_axes(name: str) -> tuple[str, ...]:
    axes = dict(nn.get_logical_axis_rules()).get(name) or ()
    return (axes,) if isinstance(axes, str) else axes


def constrain_table(units: Units, table: dict) -> dict:
    """Generated weights [T, ...] lie where stored ones would; so do their gradients.

    Of all units, or of some.

    So what crosses the network is what a plain transformer sends, and generating is
    local to each device.
    """
    return {
        name: {
            key: constrain(weight, "layers", *_axes(units[name], key))
            for key, weight in weights.items()
        }
        for name, weights in table.items()
    }


def _axes(unit: Unit, key: str) -> tuple[str, ...]:
    if isinstance(unit, Norm):
        return ("norm",)
    return {
        "kernel": unit.axes,
        "bias": unit.bias_axes,
        "lora_a": (*unit.input_axes, "lora"),
        "lora_b": ("lora", *unit.bias_axes),
    }[key]
