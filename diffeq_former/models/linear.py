"""Linear maps with a block's weights, and their gradients in training.

On a mesh, each device has the gradient of a kernel of its own sequences, and these are
added up over devices in the dtype of the product that computes them. So this product
decides on the dtype: `model.reduce_dtype`.
"""

import functools

import jax
import jax.numpy as jnp

from diffeq_former.config import ModelConfig


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
        low_rank = apply(seen, weights["lora_a"], None, num_inputs)
        y = y + apply(low_rank, weights["lora_b"], None, 1)
    return y


def for_training(c: ModelConfig, weights: dict) -> dict:
    """Return a block's weights, whose linear maps have the gradients of training.

    Gradients of gradients are those of any function; forward-mode derivatives have
    none, and need the weights as they were.
    """
    apply = functools.partial(_apply_in_training, jnp.dtype(c.reduce_dtype))
    return {
        name: layer | ({"apply": apply} if "kernel" in layer else {})
        for name, layer in weights.items()
    }


def _apply(x: jax.Array, kernel, bias, num_inputs: int) -> jax.Array:
    y = jnp.tensordot(x, kernel, num_inputs)
    if bias is None:
        return y
    return y + jnp.expand_dims(bias.astype(y.dtype), tuple(range(y.ndim - bias.ndim)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 4))
def _apply_in_training(reduce_dtype, x, kernel, bias, num_inputs: int) -> jax.Array:
    return _apply(x, kernel, bias, num_inputs)


def _forward(reduce_dtype, x, kernel, bias, num_inputs: int):
    return _apply(x, kernel, bias, num_inputs), (x, kernel, bias)


def _backward(reduce_dtype, num_inputs: int, saved, dy):
    x, kernel, bias = saved
    num_outputs, batch = kernel.ndim - num_inputs, tuple(range(x.ndim - num_inputs))
    outputs = tuple(range(-num_outputs, 0))
    dx = jnp.tensordot(dy, kernel, (outputs, outputs)).astype(x.dtype)
    dtype = jnp.promote_types(dy.dtype, reduce_dtype)
    product = functools.partial(
        jnp.tensordot, axes=(batch, batch), preferred_element_type=dtype
    )
    if x.size <= dy.size:
        dkernel = product(x, dy)
    else:  # CPUs transpose the first factor.
        order = (*range(num_outputs, kernel.ndim), *range(num_outputs))
        dkernel = product(dy, x).transpose(order)
    dbias = None if bias is None else dy.sum(batch, dtype=dtype).astype(bias.dtype)
    return dx, dkernel.astype(kernel.dtype), dbias


_apply_in_training.defvjp(_forward, _backward)
