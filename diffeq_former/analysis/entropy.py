"""Entropy of the logit lens over depth (Entropy-Lens, arXiv 2502.16570).

L length, D model, V vocabulary, T grid steps.
"""

import functools

import jax
import jax.numpy as jnp

from diffeq_former.analysis import depth
from diffeq_former.config import ModelConfig


@functools.partial(jax.jit, static_argnums=0)
def entropies(c: ModelConfig, ends: dict, states_TLD: jax.Array) -> jax.Array:
    """What the model would not know of the next token if depth ended: [T + 1, L], nats.

    H = -sum p log p of p = softmax(W norm(x)), with the last norm and the head; log V
    at most.
    """

    def of_state(x_LD):
        log_p_LV = jax.nn.log_softmax(depth.logits(c, ends, x_LD))
        return -(jnp.exp(log_p_LV) * log_p_LV).sum(-1)

    return jax.lax.map(of_state, states_TLD)
