"""Specifications of the linear maps and norms of a block.

A block lists its specs by name; a weight source creates the parameters of each spec and
generates its weights; the block's functions use those weights.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class LinearSpec:
    """A linear map whose kernel has shape [inputs..., outputs...]."""

    kernel: tuple[int, ...]
    axes: tuple[str, ...]  # logical axis names of the kernel, for sharding
    bias: bool
    num_inputs: int = 1  # number of leading kernel axes contracted with the input
    writes_residual: bool = False  # its output is added to the residual stream

    @property
    def bias_shape(self) -> tuple[int, ...]:
        return self.kernel[self.num_inputs :]

    @property
    def bias_axes(self) -> tuple[str, ...]:
        return self.axes[self.num_inputs :]

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.kernel[: self.num_inputs]

    @property
    def input_axes(self) -> tuple[str, ...]:
        return self.axes[: self.num_inputs]

    @property
    def matrix_axes(self) -> tuple[list[int], list[int]]:
        """The axes of the kernel that are the inputs and the outputs of each matrix.

        Queries, keys and values of a fused kernel are different matrices.
        """
        outputs = range(self.num_inputs, len(self.kernel))
        return (
            list(range(self.num_inputs)),
            [axis for axis in outputs if self.axes[axis] != "qkv"],
        )

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """The numbers of inputs and outputs of each matrix."""
        inputs, outputs = (
            math.prod(self.kernel[axis] for axis in axes) for axes in self.matrix_axes
        )
        return inputs, outputs


@dataclasses.dataclass(frozen=True)
class NormSpec:
    """A normalisation with a scale and optionally a shift, each [size]."""

    size: int
    shift: bool


WeightSpec = LinearSpec | NormSpec
WeightSpecs = dict[str, WeightSpec]


def with_step_lengths(specs: WeightSpecs, weights: dict, lengths) -> dict:
    """Absorb step lengths into the weights, so that all steps have length 1.

    The weights of maps that write to the residual stream are multiplied by the length.

    Args:
      specs: The block's linear maps and norms, by name.
      weights: Their weights, with a leading axis of steps.
      lengths: The length of each step, or one length for all of them.
    """

    def scaled(w):
        return w * jnp.reshape(lengths, (-1, *[1] * (w.ndim - 1)))

    return {
        name: jax.tree.map(scaled, layer)
        if getattr(specs[name], "writes_residual", False)
        else layer
        for name, layer in weights.items()
    }
