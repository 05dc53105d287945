"""Activations of the feed-forward term."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from diffeq_former.config import ModelConfig

Activation = Callable[[jax.Array], jax.Array]


def activation(c: ModelConfig, default: Activation) -> Activation:
    """Return the model's activation; `default` is that of its block."""
    return _NAMED.get(c.activation, default)


def squared_relu(x: jax.Array) -> jax.Array:
    """Return max(x, 0)^2 (So et al. 2021, "Primer", arXiv 2109.08668)."""
    return jnp.square(jax.nn.relu(x))


_NAMED: dict[str, Activation] = {
    "exact_gelu": functools.partial(jax.nn.gelu, approximate=False),
    "relu_squared": squared_relu,
}
