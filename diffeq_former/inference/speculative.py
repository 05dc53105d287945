"""Self-speculative decoding: the model in few steps drafts, in all its steps verifies.

Leviathan et al. 2023 (arXiv 2211.17192), with a draft that needs no parameters of its
own: the same weights W(t) on a coarser grid of depth. What is drawn has the
distribution of the full model; greedy, it is the same text.

B rows, K drafted tokens, W = K + 1 tokens that a round may add, V vocabulary.
"""

import dataclasses

import jax
import jax.numpy as jnp

from diffeq_former.config import ModelConfig
from diffeq_former.errors import UserError
from diffeq_former.inference.cached_model import CachedModel, Weights
from diffeq_former.inference.decode import Round, Rows
from diffeq_former.inference.sampling import Rule, probabilities, sample

_DRAFT, _ACCEPT, _CORRECT = range(3)  # what a draw at a position is for


@dataclasses.dataclass(frozen=True)
class Draft:
    num_steps: int  # of the solver, for the draft
    num_tokens: int  # that are drafted in each round

    def config(self, c: ModelConfig) -> ModelConfig:
        """The model that drafts for another.

        Raises:
          UserError: if there is none.
        """
        if c.weights == "layer_table":
            raise UserError(
                "draft_steps: this model is a layer_table, with no weights between its"
                " layers, so it cannot draft in fewer steps; leave it out"
            )
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
) -> Round:
    """1 to K + 1 tokens: those of the draft that are accepted, and one of the model.

    Each model has a cache. What rejected tokens leave there is overwritten, slot by
    slot, before a query can see it.

    Args:
      models: the full one, and the one that drafts.
      weights: theirs.
      rule: for both, so that both distributions are narrowed alike.
      V: how many ids may be drawn.
      K: tokens to draft.
    """
    full, draft = models

    def one_round(caches: tuple, rows: Rows):
        full_cache, draft_cache = caches
        drafted_BK, q_BKV, draft_cache = _draft(
            draft, weights[1], draft_cache, rows, rule, V, K
        )
        tokens_BW = jnp.concatenate([rows.last_B2[:, 1:], drafted_BK], axis=1)
        positions_BW = rows.position_B[:, None] + jnp.arange(K + 1)[None]
        logits_BWV, full_cache = full.logits(
            weights[0], full_cache, tokens_BW, positions_BW
        )
        of_places = jax.vmap(probabilities, in_axes=(1, None), out_axes=1)
        p_BWV = of_places(logits_BWV[..., :V], rule)
        new_BW, counts_B = verify(drafted_BK, q_BKV, p_BWV, rows)
        return (full_cache, draft_cache), new_BW, counts_B

    return one_round


def _draft(model: CachedModel, weights, cache, rows: Rows, rule: Rule, V: int, K: int):
    """K tokens, the probabilities [B, K, V] they were drawn with, and the cache.

    The first call reads two tokens, as the draft has not seen the last but one where
    all of its tokens were accepted.
    """

    def draw(cache, tokens_BL, positions_BL, place_B):
        logits_BLV, cache = model.logits(weights, cache, tokens_BL, positions_BL)
        logits_BV = logits_BLV[:, -1, :V]
        new_B = sample(_keys(rows.keys_B, place_B, _DRAFT), logits_BV, rule)
        return cache, new_B, probabilities(logits_BV, rule)

    def next_draw(carry, i):
        cache, token_B = carry
        place_B = rows.position_B + i
        cache, new_B, q_BV = draw(cache, token_B[:, None], place_B[:, None], place_B)
        return (cache, new_B), (new_B, q_BV)

    p_B = rows.position_B
    before_B = jnp.where(p_B > 0, p_B - 1, model.config.max_len)  # there is none
    both_B2 = jnp.stack([before_B, p_B], axis=1)
    cache, first_B, q_BV = draw(cache, rows.last_B2, both_B2, p_B)
    (cache, _), (others_KB, q_KBV) = jax.lax.scan(
        next_draw, (cache, first_B), jnp.arange(1, K)
    )
    drafted_BK = jnp.concatenate([first_B[None], others_KB]).T
    return drafted_BK, jnp.concatenate([q_BV[None], q_KBV]).swapaxes(0, 1), cache


def verify(drafted_BK: jax.Array, q_BKV: jax.Array, p_BWV: jax.Array, rows: Rows):
    """Tokens [B, W] with the distribution p, and how many count [B].

    A drafted token x is accepted with probability min(1, p(x) / q(x)). In place of the
    first that is not, one is drawn from max(0, p - q), rescaled; after K accepted ones
    from p. The probabilities are those of greedy choice, too: 0 and 1.

    Args:
      drafted_BK: what was drafted for the places after each row's last token.
      q_BKV: with which probabilities it was drawn.
      p_BWV: those of the full model, at these places and the next.
      rows: where they stand, for the keys of their draws.
    """
    B, K = drafted_BK.shape
    places_BK = rows.position_B[:, None] + jnp.arange(K)[None]
    keys_BK = jax.vmap(_keys, in_axes=(None, 1, None), out_axes=1)(
        rows.keys_B, places_BK, _ACCEPT
    )
    u_BK = jax.vmap(jax.vmap(jax.random.uniform))(keys_BK)
    q_BK, p_BK = (
        jnp.take_along_axis(x_BKV, drafted_BK[:, :, None], axis=2)[:, :, 0]
        for x_BKV in (q_BKV, p_BWV[:, :K])
    )
    accepted_B = jnp.cumprod(u_BK * q_BK < p_BK, axis=1).sum(axis=1)
    nothing_B1V = jnp.zeros_like(p_BWV[:, :1])  # is drafted for the last place
    q_BWV = jnp.concatenate([q_BKV, nothing_B1V], axis=1)
    p_BV, q_BV = (x_BWV[jnp.arange(B), accepted_B] for x_BWV in (p_BWV, q_BWV))
    rest_BV = jnp.maximum(p_BV - q_BV, 0)
    # Rounding can reject where p and q are equal, and nothing remains.
    rest_BV = jnp.where(rest_BV.any(axis=1, keepdims=True), rest_BV, p_BV)
    keys_B = _keys(rows.keys_B, rows.position_B + accepted_B, _CORRECT)
    correct_B = jax.vmap(jax.random.categorical)(keys_B, jnp.log(rest_BV))
    is_draft_BW = jnp.arange(K + 1)[None] < accepted_B[:, None]
    padded_BW = jnp.pad(drafted_BK, ((0, 0), (0, 1)))
    new_BW = jnp.where(is_draft_BW, padded_BW, correct_B[:, None])
    return new_BW.astype(jnp.int32), accepted_B + 1


def _keys(keys_B: jax.Array, places_B: jax.Array, purpose: int) -> jax.Array:
    """A key for each row, place and purpose."""

    def one(key, place):
        return jax.random.fold_in(jax.random.fold_in(key, place), purpose)

    return jax.vmap(one)(keys_B, places_B)
