"""Sampling of the next token from its logits.

Settings are data: sequences with any of them share a batch, and a token does not depend
on the settings of other sequences.

B batch, V vocabulary, K sorted tokens, S positions.
"""

import dataclasses
import math
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from diffeq_former.errors import UserError

_SMALLEST = 1e-30  # temperature and top_p; in float32 much smaller ones would be zero
_ALL = 2**31 - 1  # top_k
_FEW = 64  # for a top_k up to this, only so many tokens are sorted
NO_TOKEN = 2**31 - 1  # token id at positions that penalties do not count


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Sampling settings: penalties, temperature, top-k, top-p, min-p, in this order.

    The penalties are those of OpenAI's protocol: a token that was generated c > 0 times
    has its logit reduced by frequency_penalty * c + presence_penalty. Tokens of the
    prompt do not count.

    Raises:
      UserError: If a value is out of range.
    """

    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # only the k most likely tokens; 0: all
    top_p: float = 1.0  # only the nucleus: the fewest tokens with total probability p
    # Only tokens at least this times as probable as the most likely one (min-p, Nguyen
    # et al. 2024, arXiv 2407.01082).
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    def __post_init__(self):
        t, k, p = self.temperature, self.top_k, self.top_p
        if not 0 <= t < math.inf:
            raise UserError(f"temperature: expected 0 (greedy) or more, got {t}")
        if k < 0:
            raise UserError(f"top_k: expected 0 (all tokens) or more, got {k}")
        if not 0 < p <= 1:
            raise UserError(f"top_p: expected 0 < top_p <= 1, got {p}")
        if not 0 <= self.min_p <= 1:
            raise UserError(f"min_p: expected 0 <= min_p <= 1, got {self.min_p}")
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2 <= (value := getattr(self, name)) <= 2:
                raise UserError(f"{name}: expected -2 to 2, got {value}")

    @property
    def has_penalty(self) -> bool:
        """Whether the tokens generated so far matter."""
        return bool(self.presence_penalty or self.frequency_penalty)


class Rule(NamedTuple):
    """Sampling settings of the sequences of a batch."""

    temperature_B1: jax.Array
    top_k_B1: jax.Array
    top_p_B1: jax.Array
    min_p_B1: jax.Array
    presence_penalty_B1: jax.Array
    frequency_penalty_B1: jax.Array

    @classmethod
    def of(cls, samplings: list[Sampling]) -> Self:
        """Combine the settings of the sequences."""

        def column(values, dtype=np.float32):
            return np.array([[value] for value in values], dtype)

        return cls(
            column(s.temperature and max(s.temperature, _SMALLEST) for s in samplings),
            column((min(s.top_k or _ALL, _ALL) for s in samplings), np.int32),
            column(max(s.top_p, _SMALLEST) for s in samplings),
            column(s.min_p for s in samplings),
            column(s.presence_penalty for s in samplings),
            column(s.frequency_penalty for s in samplings),
        )

    @property
    def greedy_B1(self) -> jax.Array:
        """Whether each sequence takes the most likely token."""
        return self.temperature_B1 == 0


def penalise(
    logits_BV: jax.Array, new_BS: jax.Array, last_B: jax.Array, rule: Rule
) -> jax.Array:
    """Apply the presence and frequency penalties; count nothing if there are none.

    Args:
      logits_BV: The logits.
      new_BS: The generated tokens by position; NO_TOKEN at other positions.
      last_B: The last position of each sequence that counts.
      rule: Sampling settings.
    """

    def penalised() -> jax.Array:
        counted_BS = jnp.arange(new_BS.shape[1])[None] <= last_B[:, None]
        rows_B1 = jnp.arange(len(new_BS))[:, None]
        counts_BV = jnp.zeros_like(logits_BV).at[rows_B1, new_BS]
        counts_BV = counts_BV.add(counted_BS.astype(logits_BV.dtype), mode="drop")
        return (
            logits_BV
            - rule.frequency_penalty_B1 * counts_BV
            - rule.presence_penalty_B1 * (counts_BV > 0)
        )

    has_penalty_B1 = (rule.presence_penalty_B1 != 0) | (rule.frequency_penalty_B1 != 0)
    return jax.lax.cond(has_penalty_B1.any(), penalised, lambda: logits_BV)


def sample(keys_B: jax.Array, logits_BV: jax.Array, rule: Rule) -> jax.Array:
    """Sample one token per sequence, int32 [B], each with its own random key."""

    def sampled() -> jax.Array:
        sampled_B = jax.vmap(jax.random.categorical)(keys_B, _narrowed(logits_BV, rule))
        return jnp.where(rule.greedy_B1[:, 0], greedy_B, sampled_B.astype(jnp.int32))

    greedy_B = jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)
    return jax.lax.cond(rule.greedy_B1.all(), lambda: greedy_B, sampled)


def probabilities(logits_BV: jax.Array, rule: Rule) -> jax.Array:
    """Return the probabilities with which `sample` samples, float32 [B, V]."""

    def sampled() -> jax.Array:
        p_BV = jax.nn.softmax(_narrowed(logits_BV, rule))
        return jnp.where(rule.greedy_B1, greedy_BV, p_BV)

    greedy_BV = jax.nn.one_hot(jnp.argmax(logits_BV, axis=-1), logits_BV.shape[-1])
    return jax.lax.cond(rule.greedy_B1.all(), lambda: greedy_BV, sampled)


def _narrowed(logits_BV: jax.Array, rule: Rule) -> jax.Array:
    """Apply temperature, top-k, top-p and min-p to the logits."""
    V = logits_BV.shape[-1]
    # The maximum becomes 0, so that a tiny temperature does not make it infinite.
    logits_BV = logits_BV - logits_BV.max(axis=-1, keepdims=True)
    logits_BV = logits_BV / jnp.maximum(rule.temperature_B1, _SMALLEST)
    is_probable_BV = logits_BV >= jnp.log(rule.min_p_B1)
    sorts_few_B1 = rule.top_k_B1 <= _FEW
    sorts_all_B1 = ~sorts_few_B1 & ((rule.top_k_B1 < V) | (rule.top_p_B1 < 1))
    logits_BV = _keep_where(sorts_few_B1, logits_BV, rule, _FEW)
    logits_BV = _keep_where(sorts_all_B1, logits_BV, rule, V)
    return jnp.where(is_probable_BV, logits_BV, -jnp.inf)


def _keep_where(
    needed_B1: jax.Array, logits_BV: jax.Array, rule: Rule, num_sorted: int
) -> jax.Array:
    """Apply `keep_most_likely` to some sequences; sort nothing if there are none."""

    def keep() -> jax.Array:
        kept_BV = keep_most_likely(logits_BV, rule.top_k_B1, rule.top_p_B1, num_sorted)
        return jnp.where(needed_B1, kept_BV, logits_BV)

    needed_B1 = needed_B1 & ~rule.greedy_B1
    return jax.lax.cond(needed_B1.any(), keep, lambda: logits_BV)


def keep_most_likely(
    logits_BV: jax.Array, k: int | jax.Array, p: float | jax.Array, num_sorted: int
) -> jax.Array:
    """Set all logits to -inf but those in the nucleus of the k largest.

    The nucleus (Holtzman et al., arXiv 1904.09751) is the smallest set of most likely
    tokens with total probability >= p; for p = 1 it has all of the k. Among ties the
    first tokens are kept.

    Args:
      logits_BV: The logits.
      k: The number of tokens; an array is [B, 1].
      p: The total probability among them; an array is [B, 1].
      num_sorted: At least k, or the size of the vocabulary.
    """
    B, V = logits_BV.shape
    if num_sorted < V:
        sorted_BK, ids_BK = jax.lax.top_k(logits_BV, num_sorted)
    else:
        ids_BK = jnp.argsort(logits_BV, axis=-1, descending=True)
        sorted_BK = jnp.take_along_axis(logits_BV, ids_BK, axis=-1)
    rank_1K = jnp.arange(sorted_BK.shape[-1])[None]
    sorted_BK = jnp.where(rank_1K < k, sorted_BK, -jnp.inf)
    mass_BK = jnp.cumsum(jax.nn.softmax(sorted_BK), axis=-1)
    before_BK = jnp.pad(mass_BK[:, :-1], ((0, 0), (1, 0)))
    # Rounding can make the mass 1 before the last token.
    is_in_BK = (before_BK < p) | (jnp.asarray(p) >= 1)
    kept_BK = jnp.where(is_in_BK, sorted_BK, -jnp.inf)
    rows_B1 = jnp.arange(B)[:, None]
    return jnp.full_like(logits_BV, -jnp.inf).at[rows_B1, ids_BK].set(kept_BK)
