"""Weight sources: three ways to obtain a block's weights at time t.

A source consists of a linen module that creates its parameters when called, and of a
pure function `tabulate(config, specs, parameters, times_T)` that returns the block's
weights by name, with a leading axis T. Kernels and adapters are in the compute dtype,
biases and the weights of norms in float32.
"""

from typing import Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from diffeq_former.config import ModelConfig
from diffeq_former.models.hypernetwork import Hypernetwork
from diffeq_former.models.init_scale import kernel_stddev
from diffeq_former.models.lora import adapter, is_adapted, scale
from diffeq_former.models.parameters import norm_parameters, normal
from diffeq_former.models.weight_specs import NormSpec, WeightSpec, WeightSpecs
from diffeq_former.ode.grid import segment_ending_at


class WeightSource(Protocol):
    """Interface of a weight source, see the module's docstring."""

    def __init__(self, config: ModelConfig, specs: WeightSpecs, name: str): ...

    def __call__(self) -> dict: ...

    @staticmethod
    def tabulate(c: ModelConfig, specs: WeightSpecs, parameters, times_T) -> dict: ...


class LayerTable(nn.Module):
    """Separate weights for each layer, as in a plain transformer.

    As a function of time, W(t) is constant on segments of depth, one per layer.
    """

    config: ModelConfig
    specs: WeightSpecs

    @nn.compact
    def __call__(self) -> dict:
        c = self.config
        return {
            name: _Stored(c, spec, (c.segments,), name=name)()
            for name, spec in self.specs.items()
        }

    @staticmethod
    def tabulate(
        c: ModelConfig, specs: WeightSpecs, parameters, times_T: jax.Array
    ) -> dict:
        layers_T = segment_ending_at(times_T, c.segments)
        table = _cast(c, parameters)
        if _is_range(layers_T, c.segments):
            return table  # without a copy
        return jax.tree.map(lambda w: w[layers_T], table)


class Shared(nn.Module):
    """One set of weights for all times."""

    config: ModelConfig
    specs: WeightSpecs

    @nn.compact
    def __call__(self) -> dict:
        return {
            name: _Stored(self.config, spec, (), name=name)()
            for name, spec in self.specs.items()
        }

    @staticmethod
    def tabulate(
        c: ModelConfig, specs: WeightSpecs, parameters, times_T: jax.Array
    ) -> dict:
        return jax.tree.map(
            lambda w: jnp.broadcast_to(w[None], times_T.shape + w.shape),
            _cast(c, parameters),
        )


SOURCES: dict[str, type[WeightSource]] = {
    "hypernetwork": Hypernetwork,
    "layer_table": LayerTable,
    "shared": Shared,
}


class _Stored(nn.Module):
    """The parameters of one linear map or norm, with `leading` axes of layers."""

    config: ModelConfig
    spec: WeightSpec
    leading: tuple[int, ...]

    @nn.compact
    def __call__(self) -> dict[str, jax.Array]:
        spec, leading, layers = self.spec, self.leading, ("layers",) * len(self.leading)
        if isinstance(spec, NormSpec):
            return norm_parameters(self, spec, leading, layers)
        stddev = kernel_stddev(self.config, spec)
        kernel, bias = leading + spec.kernel, leading + spec.bias_shape
        stored = {"kernel": normal(self, "kernel", stddev, kernel, layers + spec.axes)}
        if spec.bias:
            stored["bias"] = normal(self, "bias", 0.0, bias, layers + spec.bias_axes)
        if is_adapted(self.config, self.name):
            stored |= adapter(self, self.config.lora_rank, spec, leading, layers)
        return stored


def _is_range(index_T, n: int) -> bool:
    """Return whether it is known at compilation that the indices are 0, ..., n - 1."""
    return isinstance(index_T, np.ndarray) and np.array_equal(index_T, np.arange(n))


def _cast(c: ModelConfig, parameters) -> dict:
    dtype = jnp.dtype(c.dtype)

    def cast(key: str, value: jax.Array) -> jax.Array:
        if key == "lora_b":
            value = scale(c) * value
        return value if key in ("bias", "scale", "shift") else value.astype(dtype)

    return {
        name: {key: cast(key, value) for key, value in layer.items()}
        for name, layer in parameters.items()
    }
