"""The states of a batch over depth, and the gradients of its loss by each of them.

B batch, L sequence length, D model width, T grid steps.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from diffeq_former.analysis import depth
from diffeq_former.config import ModelConfig
from diffeq_former.models.loss import NO_TARGET


@functools.partial(jax.jit, static_argnames=("c", "step", "logits"))
def measure(
    c: ModelConfig,
    outer: dict,
    table: dict,
    first_BLD,
    targets_BL,
    step: Callable = depth.step,
    logits: Callable = depth.logits,
):
    """Return a batch's loss, its states, and the gradient norms of the loss by them.

    Args:
      c: The model's config.
      outer: Parameters of the embedding, the final norm and the head.
      table: Weight table, arrays with leading axes [T, S].
      first_BLD: States before the first step, see `embed`.
      targets_BL: Ids of the next tokens; NO_TARGET where there is none.
      step: The model's step, as `depth.step`.
      logits: The model's head, as `depth.logits`.

    Returns:
      The mean loss in nats, the states before the first step and after each step
      [T + 1, B, L, D], and |d loss / d state| of each [T + 1].
    """

    def loss_and_states(offsets_TBLD):
        def body(x_BLD, weights_and_offset):
            weights_S, offset_BLD = weights_and_offset
            x_BLD = jax.vmap(lambda x_LD: step(c, weights_S, x_LD))(x_BLD)
            return x_BLD + offset_BLD, x_BLD

        x_BLD = first_BLD + offsets_TBLD[0]
        x_BLD, after_TBLD = jax.lax.scan(body, x_BLD, (table, offsets_TBLD[1:]))
        states_TBLD = jnp.concatenate([first_BLD[None], after_TBLD])
        logits_BLV = jax.vmap(lambda x_LD: logits(c, outer, x_LD))(x_BLD)
        return cross_entropy(logits_BLV, targets_BL), states_TBLD

    offsets_TBLD = jnp.zeros((c.num_layers + 1, *first_BLD.shape), first_BLD.dtype)
    value_and_grad = jax.value_and_grad(loss_and_states, has_aux=True)
    (loss, states_TBLD), gradients_TBLD = value_and_grad(offsets_TBLD)
    return loss, states_TBLD, jnp.sqrt(jnp.square(gradients_TBLD).sum((1, 2, 3)))


@functools.partial(jax.jit, static_argnums=0)
def embed(c: ModelConfig, outer: dict, ids_BL) -> jax.Array:
    """Return the states of a batch before the first step [B, L, D]."""
    return jax.vmap(lambda ids_L: depth.embed(c, outer, ids_L))(ids_BL)


def cross_entropy(logits_BLV: jax.Array, targets_BL: jax.Array) -> jax.Array:
    has = targets_BL != NO_TARGET
    losses_BL = optax.softmax_cross_entropy_with_integer_labels(
        logits_BLV, jnp.where(has, targets_BL, 0)
    )
    return losses_BL.mean(where=has)
