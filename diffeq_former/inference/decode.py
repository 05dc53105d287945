"""The decoding loop on the device: each round adds tokens to every sequence.

B sequences, R rounds per call, W maximum number of tokens per round, V vocabulary, E
tokens that end a sequence, N most likely tokens that are scored, S positions.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from diffeq_former.inference.cached_model import CachedModel, Weights
from diffeq_former.inference.sampling import Rule, penalise, sample
from diffeq_former.inference.scores import Scores, score


class DecodingState(NamedTuple):
    """Decoding state of a batch; the cache holds all tokens before the last ones."""

    last_B2: jax.Array  # last two tokens of each sequence
    position_B: jax.Array  # position of the last token
    left_B: jax.Array  # number of tokens that may follow; 0 if the sequence has ended
    keys_B: jax.Array  # random keys for sampling
    # New tokens by position, for penalties; those past the last token do not count.
    new_BS: jax.Array


class Tokens(NamedTuple):
    """The tokens of a round, or of several with a leading axis R."""

    new_BW: jax.Array
    counts_B: jax.Array  # number of valid tokens
    scores: Scores  # [B, W], with N most likely tokens


# round(caches, state) -> (caches, tokens)
Round = Callable[[tuple, DecodingState], tuple[tuple, Tokens]]


def plain_round(
    model: CachedModel, weights: Weights, rule: Rule, V: int, scored: jax.Array
) -> Round:
    """Return a round that samples one token per sequence from the first V token ids.

    The random key of a token is its sequence's key folded with the position.

    Args:
      model: The model.
      weights: Its weights.
      rule: Sampling settings.
      V: Number of token ids that may be sampled.
      scored: Whether any sequence needs scores.
    """

    def one_token(caches: tuple, state: DecodingState):
        token_B1, position_B1 = state.last_B2[:, 1:], state.position_B[:, None]
        logits_B1V, cache = model.logits(weights, caches[0], token_B1, position_B1)
        keys_B = jax.vmap(jax.random.fold_in)(state.keys_B, state.position_B)
        logits_BV = logits_B1V[:, 0, :V]
        logits_BV = penalise(logits_BV, state.new_BS, state.position_B, rule)
        new_B1 = sample(keys_B, logits_BV, rule)[:, None]
        scores = score(lambda: logits_B1V, new_B1, V, scored)
        return (cache,), Tokens(new_B1, jnp.ones_like(new_B1[:, 0]), scores)

    return one_token


def decode(one_round: Round, caches: tuple, state: DecodingState, ends_E, R: int):
    """Run up to R rounds, or fewer if all sequences end before.

    Returns:
      The caches, and the tokens with a leading axis R. The number of valid tokens is 0
      once a sequence has ended. That of the round in which one of `ends_E` is sampled
      may include tokens after it, which the caller drops.
    """

    def unfinished(carry):
        r, _, state, _ = carry
        return (r < R) & (state.left_B > 0).any()

    def next_round(carry):
        r, caches, state, rounds = carry
        caches, new = one_round(caches, state)
        new = new._replace(counts_B=jnp.where(state.left_B > 0, new.counts_B, 0))
        rounds = jax.tree.map(lambda all_R, one: all_R.at[r].set(one), rounds, new)
        return r + 1, caches, _advance(state, new, ends_E), rounds

    shapes = jax.eval_shape(one_round, caches, state)[1]
    rounds = jax.tree.map(lambda x: jnp.zeros((R, *x.shape), x.dtype), shapes)
    carry = (0, caches, state, rounds)
    _, caches, _, rounds = jax.lax.while_loop(unfinished, next_round, carry)
    return caches, rounds


def _advance(state: DecodingState, new: Tokens, ends_E) -> DecodingState:
    """Return the decoding state after a round."""
    new_BW, counts_B, _ = new
    known = jnp.concatenate([state.last_B2, new_BW], axis=1)
    last_two_B2 = counts_B[:, None] + jnp.arange(2)[None]
    counts_BW = jnp.arange(new_BW.shape[1])[None] < counts_B[:, None]
    ended_B = (jnp.isin(new_BW, ends_E) & counts_BW).any(axis=1)
    return DecodingState(
        jnp.take_along_axis(known, last_two_B2, axis=1),
        state.position_B + counts_B,
        jnp.where(ended_B, 0, jnp.maximum(state.left_B - counts_B, 0)),
        state.keys_B,
        put_after(state.position_B, new_BW, state.new_BS),
    )


def put_after(position_B, tokens_BL, new_BS) -> jax.Array:
    """Return `new_BS` with these tokens at the positions after `position_B`."""
    rows_B1 = jnp.arange(len(new_BS))[:, None]
    positions_BL = position_B[:, None] + 1 + jnp.arange(tokens_BL.shape[1])[None]
    return new_BS.at[rows_B1, positions_BL].set(tokens_BL, mode="drop")
