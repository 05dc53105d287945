"""Integrates one sequence over depth, given the weight table of a model.

The computation is that of models/step.py, as pure functions of the state: no dropout,
no mesh, any precision, and an attention function that can be replaced and
differentiated.

B batch (always 1), L sequence length, D model width, N heads, K key-value heads, H head
size, S keys or stage times of a step, T grid steps, V vocabulary.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from diffeq_former.config import ModelConfig
from diffeq_former.errors import UserError
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.stabilisers import stabilised_step
from diffeq_former.models.transformer import Transformer

FIELDS = ("attention", "whole")  # the terms that a derivative includes


@functools.partial(jax.jit, static_argnums=0)
def embed(c: ModelConfig, outer: dict, ids_L) -> jax.Array:
    """Return the state x_0 before the first step [L, D]."""
    ids_BL = jnp.asarray(ids_L)[None]
    positions_BL = jnp.arange(ids_BL.shape[1])[None]
    return Transformer(c).apply(
        {"params": outer},
        method=lambda module: module.embedding(ids_BL, positions_BL)[0],
    )


@functools.partial(jax.jit, static_argnums=0)
def states(c: ModelConfig, table: dict, x_LD: jax.Array) -> jax.Array:
    """Return the states before the first step and after each step [T + 1, L, D]."""

    def body(x_LD, weights_S):
        after_LD = step(c, weights_S, x_LD)
        return after_LD, x_LD

    last_LD, before_TLD = jax.lax.scan(body, x_LD, table)
    return jnp.concatenate([before_TLD, last_LD[None]])


def attend(q_BLNH, k_BSKH, v_BSKH, positions_L=None) -> jax.Array:
    """Apply causal attention; return [B, L, N, H].

    `positions_L` are the positions of the queries; None if there is one per key.
    """
    p_BNLS = probabilities(q_BLNH, k_BSKH, positions_L)
    v_BSNH = _for_each_head(v_BSKH, q_BLNH.shape[2])
    return jnp.einsum("bnls,bsnh->blnh", p_BNLS, v_BSNH)


def step(
    c: ModelConfig,
    weights_S: dict,
    x_LD: jax.Array,
    field: str = "whole",
    attend: Callable = attend,
    positions_L: jax.Array | None = None,
) -> jax.Array:
    """Take one step of the model's solver and return the new state [L, D].

    Args:
      c: The model's config.
      weights_S: Weights of the step, with a leading axis of stage times.
      x_LD: The state before the step.
      field: `whole`, or `attention` for the same step with derivatives through the
        feed-forward term stopped.
      attend: Attention function of queries, keys and values; replace it to record or
        modify them.
      positions_L: Positions of the tokens in x_LD; None if it holds the whole sequence.

    Raises:
      UserError: If the model's steps are reversible.
    """
    if c.backward == "reversible":
        raise UserError(
            "config.model.backward: this analysis follows one state through depth, but"
            " reversible steps couple two; use a run with stored or binomial"
        )
    both = terms(c, weights_S, field, attend, positions_L)
    block = BLOCKS[c.block]
    return stabilised_step(c, block, both, weights_S, x_LD, c.step_size)


def terms(
    c: ModelConfig,
    weights_S: dict,
    field: str = "whole",
    attend: Callable = attend,
    positions_L: jax.Array | None = None,
) -> tuple[Callable, Callable]:
    """Return the attention and feed-forward terms of the field; Args as for `step`."""
    block = BLOCKS[c.block]

    def attention(node: int, x_LD):
        own_L = jnp.arange(x_LD.shape[0]) if positions_L is None else positions_L
        weights = _at(node, weights_S)
        return block.attention(c, weights, x_LD[None], own_L[None], attend)[0]

    def feed_forward(node: int, x_LD):
        dx_LD = block.feed_forward(c, _at(node, weights_S), x_LD[None])[0]
        return dx_LD if field == "whole" else jax.lax.stop_gradient(dx_LD)

    return attention, feed_forward


@functools.partial(jax.jit, static_argnums=0)
def attention_maps(c: ModelConfig, table: dict, states_TLD: jax.Array) -> jax.Array:
    """Return the attention weights at the first stage of each step [T, N, L, L].

    Args:
      c: The model's config.
      table: Weight table, arrays with leading axes [T, S].
      states_TLD: States before each step; a state after the last step is ignored.
    """

    def maps(weights_and_x):
        (weights, x_LD), recorded = weights_and_x, []

        def recording_attend(q_BLNH, k_BLKH, v_BLKH):
            recorded.append(probabilities(q_BLNH, k_BLKH)[0])
            return attend(q_BLNH, k_BLKH, v_BLKH)

        positions_BL = jnp.arange(x_LD.shape[0])[None]
        BLOCKS[c.block].attention(
            c, weights, x_LD[None], positions_BL, recording_attend
        )
        return recorded[0]

    first = jax.tree.map(lambda w: w[:, 0], table)
    return jax.lax.map(maps, (first, states_TLD[: c.num_layers]))


@functools.partial(jax.jit, static_argnums=0)
def logits(c: ModelConfig, outer: dict, x_LD: jax.Array) -> jax.Array:
    """Return the logits of these states [L, V] (final norm and head: a logit lens)."""

    def read(module):
        y_BLD = module.block.final_norm(module.final_norm(), x_LD[None], c.norm_eps)
        return module.logits(y_BLD)[0]

    return Transformer(c).apply({"params": outer}, method=read)


def probabilities(q_BLNH, k_BSKH, positions_L=None) -> jax.Array:
    """Return the causal attention weights [B, N, L, S]; they sum to 1 over S."""
    L, N, H = q_BLNH.shape[1:]
    k_BSNH = _for_each_head(k_BSKH, N)
    scores_BNLS = jnp.einsum("blnh,bsnh->bnls", q_BLNH, k_BSNH) * H**-0.5
    positions_L = jnp.arange(L) if positions_L is None else positions_L
    mask_LS = jnp.arange(k_BSNH.shape[1])[None] <= positions_L[:, None]
    return jax.nn.softmax(jnp.where(mask_LS[None, None], scores_BNLS, -jnp.inf))


def _for_each_head(x_BLKH, num_heads: int):
    return jnp.repeat(x_BLKH, num_heads // x_BLKH.shape[2], axis=2)


def _at(node: int, weights_S: dict) -> dict:
    return jax.tree.map(lambda w: w[node], weights_S)
