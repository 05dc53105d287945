"""Sampling of the next token from its logits.

B batch, V vocabulary, K sorted tokens.
"""

import dataclasses
import functools
import math
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np

from diffeq_former.errors import UserError
from diffeq_former.inference import buckets

_SMALLEST = 1e-30  # temperature and top_p; in float32 much smaller ones would be zero
_ALL = 2**31 - 1  # top_k


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Sampling settings, applied in the order temperature, top-k, top-p, min-p.

    Raises:
      UserError: If a value is out of range.
    """

    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # only the k most likely tokens; 0: all
    top_p: float = 1.0  # only the nucleus: the fewest tokens with total probability p
    # Only tokens at least this times as probable as the most likely one (min-p, Nguyen
    # et al. 2024, arXiv 2407.01082).
    min_p: float = 0.0

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

    @property
    def kind(self) -> tuple[bool, int]:
        """Static settings (greedy, num_sorted); a program is compiled for each."""
        if self.temperature == 0:
            return True, 0
        if self.top_k:
            return False, buckets.num_sorted(self.top_k)
        return False, _ALL if self.top_p < 1 else 0


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["temperature_B1", "top_k_B1", "top_p_B1", "min_p_B1"],
    meta_fields=["greedy", "num_sorted"],
)
@dataclasses.dataclass(frozen=True)
class Rule:
    """Sampling settings of a batch: arrays, and the static `kind`."""

    temperature_B1: jax.Array
    top_k_B1: jax.Array
    top_p_B1: jax.Array
    min_p_B1: jax.Array
    greedy: bool
    num_sorted: int  # number of tokens that top-k and top-p sort; 0: neither is applied

    @classmethod
    def of(cls, samplings: list[Sampling]) -> Self:
        """Combine the settings of the sequences, which must be of one kind."""
        kinds = {sampling.kind for sampling in samplings}
        assert len(kinds) == 1, kinds

        def column(values, dtype=np.float32):
            return np.array([[value] for value in values], dtype)

        return cls(
            column(max(s.temperature, _SMALLEST) for s in samplings),
            column((min(s.top_k or _ALL, _ALL) for s in samplings), np.int32),
            column(max(s.top_p, _SMALLEST) for s in samplings),
            column(s.min_p for s in samplings),
            *kinds.pop(),
        )


def sample(keys_B: jax.Array, logits_BV: jax.Array, rule: Rule) -> jax.Array:
    """Sample one token per sequence, int32 [B], each with its own random key."""
    if rule.greedy:
        return jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)
    logits_BV = _narrowed(logits_BV, rule)
    return jax.vmap(jax.random.categorical)(keys_B, logits_BV).astype(jnp.int32)


def probabilities(logits_BV: jax.Array, rule: Rule) -> jax.Array:
    """Return the probabilities with which `sample` samples, float32 [B, V]."""
    if rule.greedy:
        return jax.nn.one_hot(jnp.argmax(logits_BV, axis=-1), logits_BV.shape[-1])
    return jax.nn.softmax(_narrowed(logits_BV, rule))


def _narrowed(logits_BV: jax.Array, rule: Rule) -> jax.Array:
    """Apply temperature, top-k, top-p and min-p to the logits."""
    # The maximum becomes 0, so that a tiny temperature does not make it infinite.
    logits_BV = logits_BV - logits_BV.max(axis=-1, keepdims=True)
    logits_BV = logits_BV / rule.temperature_B1
    is_probable_BV = logits_BV >= jnp.log(rule.min_p_B1)
    if rule.num_sorted:
        logits_BV = keep_most_likely(
            logits_BV, rule.top_k_B1, rule.top_p_B1, rule.num_sorted
        )
    return jnp.where(is_probable_BV, logits_BV, -jnp.inf)


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
