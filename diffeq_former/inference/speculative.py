"""Self-speculative decoding: a coarser discretisation drafts, the full model verifies.

Speculative decoding (Leviathan et al. 2023, arXiv 2211.17192) with a draft model that
has no parameters of its own: it uses the same weights W(t) on a coarser grid of depth.
Samples have the distribution of the full model; greedy decoding gives the same text.

B sequences, K drafted tokens, W = K + 1 maximum number of tokens per round, V
vocabulary.
"""

import dataclasses

import jax
import jax.numpy as jnp

from diffeq_former.config import ModelConfig
from diffeq_former.errors import UserError
from diffeq_former.inference.cached_model import CachedModel, Weights
from diffeq_former.inference.decode import DecodingState, Round, Tokens, put_after
from diffeq_former.inference.sampling import Rule, penalise, probabilities, sample
from diffeq_former.inference.scores import score

_DRAFT, _ACCEPT, _CORRECT = range(3)  # purposes of the random keys at a position


@dataclasses.dataclass(frozen=True)
class Draft:
    """Settings for self-speculative decoding."""

    num_steps: int  # solver steps of the draft model
    num_tokens: int  # tokens to draft per round

    def config(self, c: ModelConfig) -> ModelConfig:
        """Return the config of the draft model for the full model `c`.

        Raises:
          UserError: If a setting is out of range.
        """
        if not 1 <= self.num_steps <= c.num_layers:
            raise UserError(
                f"draft_steps: expected 1 to {c.num_layers}, the model's own number of "
                f"steps, got {self.num_steps}"
            )
        if not 1 <= self.num_tokens < c.max_len:
            raise UserError(
                f"draft_tokens: expected 1 to {c.max_len - 1}, for a model whose "
                f"max_len is {c.max_len}, got {self.num_tokens}"
            )
        return c.at_depth(self.num_steps)


def speculative_round(
    models: tuple[CachedModel, CachedModel],
    weights: tuple[Weights, Weights],
    rule: Rule,
    V: int,
    K: int,
    scored: jax.Array,
) -> Round:
    """Return a round that adds the accepted draft tokens and one of the full model.

    Each model has a cache. The entries of rejected tokens are overwritten, slot by
    slot, before a query can attend to them.

    Args:
      models: The full model and the draft model.
      weights: The weights of both models.
      rule: Sampling settings, applied to the distributions of both models.
      V: Number of token ids that may be sampled.
      K: Number of tokens to draft.
      scored: Whether any sequence needs scores.
    """
    full, draft = models

    def one_round(caches: tuple, state: DecodingState):
        full_cache, draft_cache = caches
        drafted_BK, q_BKV, draft_cache = _draft(
            draft, weights[1], draft_cache, state, rule, V, K
        )
        tokens_BW = jnp.concatenate([state.last_B2[:, 1:], drafted_BK], axis=1)
        positions_BW = state.position_B[:, None] + jnp.arange(K + 1)[None]
        logits_BWV, full_cache = full.logits(
            weights[0], full_cache, tokens_BW, positions_BW
        )
        new_BS = put_after(state.position_B, drafted_BK, state.new_BS)

        def distribution(logits_BV, position_B):
            return probabilities(penalise(logits_BV, new_BS, position_B, rule), rule)

        by_position = jax.vmap(distribution, in_axes=1, out_axes=1)
        p_BWV = by_position(logits_BWV[..., :V], positions_BW)
        new_BW, counts_B = verify(drafted_BK, q_BKV, p_BWV, state)
        scores = score(lambda: logits_BWV, new_BW, V, scored)
        return (full_cache, draft_cache), Tokens(new_BW, counts_B, scores)

    return one_round


def _draft(
    model: CachedModel, weights, cache, state: DecodingState, rule: Rule, V: int, K: int
):
    """Draft K tokens; return them, their distributions [B, K, V], and the cache.

    The first call reads two tokens: if all drafted tokens of the previous round were
    accepted, the last of them is not in the draft model's cache yet.
    """

    def draft_token(cache, new_BS, tokens_BL, positions_BL, position_B):
        logits_BLV, cache = model.logits(weights, cache, tokens_BL, positions_BL)
        logits_BV = penalise(logits_BLV[:, -1, :V], new_BS, position_B, rule)
        new_B = sample(_keys(state.keys_B, position_B, _DRAFT), logits_BV, rule)
        new_BS = put_after(position_B, new_B[:, None], new_BS)
        return (cache, new_BS, new_B), (new_B, probabilities(logits_BV, rule))

    def draft_next(carry, i):
        cache, new_BS, token_B = carry
        position_B = state.position_B + i
        one_B1 = token_B[:, None], position_B[:, None]
        return draft_token(cache, new_BS, *one_B1, position_B)

    p_B = state.position_B
    # A sequence of one token has no token before: its position is that of padding.
    before_B = jnp.where(p_B > 0, p_B - 1, model.config.max_len)
    both_B2 = jnp.stack([before_B, p_B], axis=1)
    carry, (first_B, q_BV) = draft_token(
        cache, state.new_BS, state.last_B2, both_B2, p_B
    )
    (cache, *_), (others_KB, q_KBV) = jax.lax.scan(draft_next, carry, jnp.arange(1, K))
    drafted_BK = jnp.concatenate([first_B[None], others_KB]).T
    return drafted_BK, jnp.concatenate([q_BV[None], q_KBV]).swapaxes(0, 1), cache


def verify(
    drafted_BK: jax.Array, q_BKV: jax.Array, p_BWV: jax.Array, state: DecodingState
):
    """Accept or reject drafted tokens so that the result has the distribution p.

    A drafted token x is accepted with probability min(1, p(x) / q(x)). The first
    rejected token is replaced by a sample from the normalised max(0, p - q); if all K
    tokens are accepted, another token is sampled from p. For greedy decoding, p and q
    are one-hot.

    Args:
      drafted_BK: Drafted tokens for the positions after each sequence's last token.
      q_BKV: Probabilities with which they were sampled.
      p_BWV: Probabilities of the full model at these positions and the next one.
      state: Decoding state, which determines the random keys.

    Returns:
      Tokens [B, W] and the number of valid ones [B].
    """
    B, K = drafted_BK.shape
    positions_BK = state.position_B[:, None] + jnp.arange(K)[None]
    keys_BK = jax.vmap(_keys, in_axes=(None, 1, None), out_axes=1)(
        state.keys_B, positions_BK, _ACCEPT
    )
    u_BK = jax.vmap(jax.vmap(jax.random.uniform))(keys_BK)
    q_BK, p_BK = (
        jnp.take_along_axis(x_BKV, drafted_BK[:, :, None], axis=2)[:, :, 0]
        for x_BKV in (q_BKV, p_BWV[:, :K])
    )
    accepted_B = jnp.cumprod(u_BK * q_BK < p_BK, axis=1).sum(axis=1)
    # No token is drafted for the last position, where q = 0 makes p - q equal p.
    zeros_B1V = jnp.zeros_like(p_BWV[:, :1])
    q_BWV = jnp.concatenate([q_BKV, zeros_B1V], axis=1)
    p_BV, q_BV = (x_BWV[jnp.arange(B), accepted_B] for x_BWV in (p_BWV, q_BWV))
    residual_BV = jnp.maximum(p_BV - q_BV, 0)
    # Rounding can cause a rejection although p = q; the residual is then all zeros.
    residual_BV = jnp.where(residual_BV.any(axis=1, keepdims=True), residual_BV, p_BV)
    keys_B = _keys(state.keys_B, state.position_B + accepted_B, _CORRECT)
    correct_B = jax.vmap(jax.random.categorical)(keys_B, jnp.log(residual_BV))
    is_draft_BW = jnp.arange(K + 1)[None] < accepted_B[:, None]
    padded_BW = jnp.pad(drafted_BK, ((0, 0), (0, 1)))
    new_BW = jnp.where(is_draft_BW, padded_BW, correct_B[:, None])
    return new_BW.astype(jnp.int32), accepted_B + 1


def _keys(keys_B: jax.Array, positions_B: jax.Array, purpose: int) -> jax.Array:
    """Derive a random key from each sequence's key, its position and the purpose."""

    def one(key, position):
        return jax.random.fold_in(jax.random.fold_in(key, position), purpose)

    return jax.vmap(one)(keys_B, positions_B)
