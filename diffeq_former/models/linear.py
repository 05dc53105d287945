"""Linear maps with a block's weights, and their products in training.

On a mesh, each device has the gradient of a kernel of its own sequences, and these are
added up over devices in the dtype of the product that computes them. So this product
decides on the dtype: `model.reduce_dtype`.

With `model.matmul_precision`, the factors of products are quantised to 8 bits when they
are multiplied, each row and column with its own scale; what is stored, communicated and
added stays as it is. The recipes are those of "FP8 formats for deep learning"
(Micikevicius et al. 2022, arXiv 2209.05433), and int8 for all but gradients of kernels,
whose sums over tokens it is too coarse for.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from diffeq_former.config import ModelConfig
from diffeq_former.errors import require_extra


class _Recipe(NamedTuple):
    """The dtypes in which factors are multiplied; None: as they are."""

    inputs_and_kernels: str | None
    gradients: str | None
    for_kernel_gradients: (
        bool  # or only in the forward pass and for gradients of inputs
    )


RECIPES = {
    "default": _Recipe(None, None, False),
    "int8": _Recipe("int8", "int8", False),
    "fp8": _Recipe("float8_e4m3fn", "float8_e5m2", True),
}


def linear(weights: dict, x: jax.Array, num_inputs: int = 1) -> jax.Array:
    """Contract the last `num_inputs` axes of x with the kernel and add the bias.

    If the weights contain a LoRA adapter, its output is added, too (lora.py).

    Args:
      weights: The weights of a linear map.
      x: The input, with any leading axes.
      num_inputs: The number of leading axes of the kernel that are contracted.
    """
    apply = weights.get("apply", _apply)
    y = apply(x, weights["kernel"], weights.get("bias"), num_inputs)
    if "lora_a" in weights:
        seen = weights["lora_dropout"](x) if "lora_dropout" in weights else x
        apply = weights.get("apply_adapter", _apply)
        low_rank = apply(seen, weights["lora_a"], None, num_inputs)
        y = y + apply(low_rank, weights["lora_b"], None, 1)
    return y


def for_training(c: ModelConfig, weights: dict) -> dict:
    """Return a block's weights whose linear maps have the products of training.

    These have no forward-mode derivatives, for which the weights are taken as they are.
    They compute gradients of kernels, so that they are not for those that are frozen
    beside adapters.
    """
    trained = functools.partial(
        _apply_in_training, jnp.dtype(c.reduce_dtype), RECIPES[c.matmul_precision]
    )
    products = {"apply": _apply if c.lora_rank else trained, "apply_adapter": trained}
    return {
        name: layer | (products if "kernel" in layer else {})
        for name, layer in weights.items()
    }


def _apply(x: jax.Array, kernel, bias, num_inputs: int) -> jax.Array:
    return _add_bias(jnp.tensordot(x, kernel, num_inputs), bias)


def _add_bias(y: jax.Array, bias) -> jax.Array:
    if bias is None:
        return y
    return y + jnp.expand_dims(bias.astype(y.dtype), tuple(range(y.ndim - bias.ndim)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 5))
def _apply_in_training(
    reduce_dtype, recipe: _Recipe, x, kernel, bias, num_inputs: int
) -> jax.Array:
    return _forward(reduce_dtype, recipe, x, kernel, bias, num_inputs)[0]


def _forward(reduce_dtype, recipe: _Recipe, x, kernel, bias, num_inputs: int):
    dtype = recipe.inputs_and_kernels
    axes = (tuple(range(-num_inputs, 0)), tuple(range(num_inputs)))
    y = _product(x, kernel, axes, (dtype, dtype), x.dtype)
    return _add_bias(y, bias), (x, kernel, bias)


def _backward(reduce_dtype, recipe: _Recipe, num_inputs: int, saved, dy):
    x, kernel, bias = saved
    num_outputs, batch = kernel.ndim - num_inputs, tuple(range(x.ndim - num_inputs))
    outputs = (tuple(range(-num_outputs, 0)),) * 2
    dtypes = (recipe.gradients, recipe.inputs_and_kernels)
    dx = _product(dy, kernel, outputs, dtypes, x.dtype)
    if not recipe.for_kernel_gradients:
        dtypes = (None, None)
    reduced = jnp.promote_types(dy.dtype, reduce_dtype)
    # XLA for CPUs transposes the first factor; with the order exchanged it cannot
    # execute a product of bfloat16 with a float32 sum.
    if x.size <= dy.size or reduced != dy.dtype:
        dkernel = _product(x, dy, (batch, batch), dtypes[::-1], reduced)
    else:
        order = (*range(num_outputs, kernel.ndim), *range(num_outputs))
        dkernel = _product(dy, x, (batch, batch), dtypes, reduced).transpose(order)
    dbias = None if bias is None else dy.sum(batch, dtype=reduced).astype(bias.dtype)
    return dx, dkernel.astype(kernel.dtype), dbias


_apply_in_training.defvjp(_forward, _backward)


def _product(a, b, axes, dtypes, result_dtype) -> jax.Array:
    """Return the tensordot of arrays, each quantised first if its dtype is given."""
    if dtypes == (None, None):
        return jnp.tensordot(a, b, axes, preferred_element_type=result_dtype)
    require_extra("quantized", "qwix", prefix="config.model.matmul_precision: ")
    import qwix

    def quantised(x, contracted, dtype):
        kept = set(range(x.ndim)) - {axis % x.ndim for axis in contracted}
        return qwix.quantize(x, jnp.dtype(dtype), channelwise_axes=tuple(sorted(kept)))

    factors = (quantised(*factor) for factor in zip((a, b), axes, dtypes, strict=True))
    contracted = tuple(
        tuple(axis % x.ndim for axis in own)
        for x, own in zip((a, b), axes, strict=True)
    )
    return qwix.dot_general(
        *factors, (contracted, ((), ())), preferred_element_type=jnp.float32
    ).astype(result_dtype)
