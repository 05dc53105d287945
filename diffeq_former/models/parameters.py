"""Creation of parameters, in float32 and with logical axes for sharding."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from diffeq_former.models.weight_specs import NormSpec

Axes = tuple[str | None, ...]


def normal(
    module: nn.Module, name: str, stddev: float, shape: tuple[int, ...], axes: Axes
) -> jax.Array:
    """Create a parameter of `module` from N(0, stddev^2); zeros if stddev is 0."""
    init = nn.initializers.normal(stddev) if stddev else nn.initializers.zeros_init()
    return _param(module, name, init, shape, axes)


def uniform(
    module: nn.Module, name: str, bound: float, shape: tuple[int, ...], axes: Axes
) -> jax.Array:
    """Create a parameter of `module`, uniform on [-bound, bound)."""

    def init(key, shape, dtype):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return _param(module, name, init, shape, axes)


def norm_parameters(
    module: nn.Module,
    spec: NormSpec,
    leading: tuple[int, ...] = (),
    axes: Axes = (),
    scale: float = 1.0,
) -> dict[str, jax.Array]:
    """Create a norm's scale, all of one value, and its shift (zeros) if it has one."""
    shape, axes = (*leading, spec.size), (*axes, "norm")
    init = nn.initializers.constant(scale)
    stored = {"scale": _param(module, "scale", init, shape, axes)}
    if spec.shift:
        stored["shift"] = normal(module, "shift", 0.0, shape, axes)
    return stored


def _param(module: nn.Module, name: str, init, shape, axes: Axes) -> jax.Array:
    boxed = nn.with_logical_partitioning(init, axes)
    return module.param(name, boxed, shape, jnp.float32)
