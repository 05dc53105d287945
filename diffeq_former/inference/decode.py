"""The decoding loop on the device: each round adds tokens to every sequence.

B sequences, R rounds per call, W maximum number of tokens per round, V vocabulary, E
tokens that end a sequence.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from diffeq_former.inference.cached_model import CachedModel, Weights
from diffeq_former.inference.sampling import Rule, sample


class DecodingState(NamedTuple):
    """Decoding state of a batch; the cache holds all tokens before the last ones."""

    last_B2: jax.Array  # last two tokens of each sequence
    position_B: jax.Array  # position of the last token
    left_B: jax.Array  # number of tokens that may follow; 0 if the sequence has ended
    keys_B: jax.Array  # random keys for sampling


# round(caches, state) -> (caches, tokens [B, W], number of valid tokens [B])
Round = Callable[[tuple, DecodingState], tuple[tuple, jax.Array, jax.Array]]


def plain_round(model: CachedModel, weights: Weights, rule: Rule, V: int) -> Round:
    """Return a round that samples one token per sequence from the first V token ids.

    The random key of a token is its sequence's key folded with the position.
    """

    def one_token(caches: tuple, state: DecodingState):
        token_B1, position_B1 = state.last_B2[:, 1:], state.position_B[:, None]
        logits_B1V, cache = model.logits(weights, caches[0], token_B1, position_B1)
        keys_B = jax.vmap(jax.random.fold_in)(state.keys_B, state.position_B)
        new_B = sample(keys_B, logits_B1V[:, 0, :V], rule)
        return (cache,), new_B[:, None], jnp.ones_like(new_B)

    return one_token


def decode(
    one_round: Round, caches: tuple, state: DecodingState, ends_E, R: int, W: int
):
    """Run up to R rounds, or fewer if all sequences end before.

    Returns:
      The caches, the tokens of the rounds [R, B, W], and the number of valid tokens in
      each round [R, B], which is 0 once a sequence has ended. The count of the round in
      which one of `ends_E` is sampled may include tokens after it, which the caller
      drops.
    """

    def unfinished(carry):
        r, _, state, _, _ = carry
        return (r < R) & (state.left_B > 0).any()

    def next_round(carry):
        r, caches, state, new_RBW, counts_RB = carry
        caches, new_BW, counts_B = one_round(caches, state)
        counts_B = jnp.where(state.left_B > 0, counts_B, 0)
        new_RBW, counts_RB = new_RBW.at[r].set(new_BW), counts_RB.at[r].set(counts_B)
        state = _advance(state, new_BW, counts_B, ends_E)
        return r + 1, caches, state, new_RBW, counts_RB

    B = state.position_B.shape[0]
    new_RBW, counts_RB = jnp.zeros((R, B, W), jnp.int32), jnp.zeros((R, B), jnp.int32)
    carry = (0, caches, state, new_RBW, counts_RB)
    _, caches, _, new_RBW, counts_RB = jax.lax.while_loop(unfinished, next_round, carry)
    return caches, new_RBW, counts_RB


def _advance(state: DecodingState, new_BW, counts_B, ends_E) -> DecodingState:
    """Return the decoding state after a round."""
    known = jnp.concatenate([state.last_B2, new_BW], axis=1)
    last_two_B2 = counts_B[:, None] + jnp.arange(2)[None]
    counts_BW = jnp.arange(new_BW.shape[1])[None] < counts_B[:, None]
    ended_B = (jnp.isin(new_BW, ends_E) & counts_BW).any(axis=1)
    return DecodingState(
        jnp.take_along_axis(known, last_two_B2, axis=1),
        state.position_B + counts_B,
        jnp.where(ended_B, 0, jnp.maximum(state.left_B - counts_B, 0)),
        state.keys_B,
    )
