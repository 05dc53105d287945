"""Other answers to which token mattered for a prediction, to set beside exponents.

L length, D model, N heads, T grid steps, V vocabulary.
"""

import functools

import jax
import jax.numpy as jnp

from diffeq_former.analysis import depth
from diffeq_former.config import ModelConfig


@jax.jit
def rollout(maps_TNLL: jax.Array, last) -> jax.Array:
    """Attention rollout (Abnar and Zuidema 2020, arXiv 2005.00928) of one token: [L].

    The product over depth of (mean over heads + identity) / 2; it sums to one.
    """
    L = maps_TNLL.shape[-1]
    mixed_TLL = (maps_TNLL.mean(1) + jnp.eye(L)[None]) / 2
    row_L, _ = jax.lax.scan(
        lambda row_L, mixed_LL: (row_L @ mixed_LL, None),
        jnp.zeros(L).at[last].set(1.0),
        mixed_TLL,
        reverse=True,
    )
    return row_L


@functools.partial(jax.jit, static_argnums=0)
def gradient_x_input(
    c: ModelConfig, ends: dict, table: dict, x_LD: jax.Array, last
) -> jax.Array:
    """The gradient of the likeliest next token's logit, times the embedding: [L]."""

    def largest_logit(x_LD):
        at_end_LD = depth.states(c, table, x_LD)[-1]
        return depth.logits(c, ends, at_end_LD)[last].max()

    return (jax.grad(largest_logit)(x_LD) * x_LD).sum(-1)
