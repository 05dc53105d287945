"""Sampling of the next token from its logits. B batch, V vocabulary."""

import dataclasses
import functools
import math
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np

from diffeq_former.errors import UserError

_SMALLEST = 1e-30  # temperature and top_p; in float32 much smaller ones would be zero


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Sampling settings, applied in the order temperature, top-k, top-p.

    Raises:
      UserError: If a value is out of range.
    """

    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # only the k most likely tokens; 0: all
    top_p: float = 1.0  # only the nucleus: the fewest tokens with total probability p

    def __post_init__(self):
        t, k, p = self.temperature, self.top_k, self.top_p
        if not 0 <= t < math.inf:
            raise UserError(f"temperature: expected 0 (greedy) or more, got {t}")
        if k < 0:
            raise UserError(f"top_k: expected 0 (all tokens) or more, got {k}")
        if not 0 < p <= 1:
            raise UserError(f"top_p: expected 0 < top_p <= 1, got {p}")

    @property
    def kind(self) -> tuple[bool, int, bool]:
        """Static settings (greedy, top_k, nucleus); a program is compiled for each."""
        return self.temperature == 0, self.top_k, self.top_p < 1


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["temperature_B1", "top_p_B1"],
    meta_fields=["greedy", "top_k", "nucleus"],
)
@dataclasses.dataclass(frozen=True)
class Rule:
    """Sampling settings of a batch: arrays for temperature and top-p, static `kind`."""

    temperature_B1: jax.Array
    top_p_B1: jax.Array
    greedy: bool
    top_k: int
    nucleus: bool

    @classmethod
    def of(cls, samplings: list[Sampling]) -> Self:
        """Combine the settings of the sequences, which must be of one kind."""
        kinds = {sampling.kind for sampling in samplings}
        assert len(kinds) == 1, kinds
        numbers_B2 = np.array([(s.temperature, s.top_p) for s in samplings])
        numbers_B2 = np.maximum(numbers_B2, _SMALLEST).astype(np.float32)
        return cls(numbers_B2[:, :1], numbers_B2[:, 1:], *kinds.pop())


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
    """Apply temperature, top-k and top-p to the logits."""
    # The maximum becomes 0, so that a tiny temperature does not make it infinite.
    logits_BV = logits_BV - logits_BV.max(axis=-1, keepdims=True)
    logits_BV = logits_BV / rule.temperature_B1
    if rule.top_k:
        logits_BV = keep_top_k(logits_BV, rule.top_k)
    if rule.nucleus:
        logits_BV = keep_top_p(logits_BV, rule.top_p_B1)
    return logits_BV


def keep_top_k(logits_BV: jax.Array, k: int) -> jax.Array:
    """Set all but the k largest logits to -inf; among ties the first ones are kept."""
    kept_BK, ids_BK = jax.lax.top_k(logits_BV, min(k, logits_BV.shape[-1]))
    return _scatter(kept_BK, ids_BK, logits_BV)


def keep_top_p(logits_BV: jax.Array, p: float | jax.Array) -> jax.Array:
    """Set the logits outside the nucleus to -inf (Holtzman et al., arXiv 1904.09751).

    The nucleus is the smallest set of most likely tokens with total probability >= p.
    """
    ids_BV = jnp.argsort(logits_BV, axis=-1, descending=True)
    sorted_BV = jnp.take_along_axis(logits_BV, ids_BV, axis=-1)
    mass_BV = jnp.cumsum(jax.nn.softmax(sorted_BV), axis=-1)
    before_BV = jnp.pad(mass_BV[:, :-1], ((0, 0), (1, 0)))
    return _scatter(jnp.where(before_BV < p, sorted_BV, -jnp.inf), ids_BV, logits_BV)


def _scatter(kept_BK: jax.Array, ids_BK: jax.Array, like_BV: jax.Array) -> jax.Array:
    rows_B1 = jnp.arange(like_BV.shape[0])[:, None]
    return jnp.full_like(like_BV, -jnp.inf).at[rows_B1, ids_BK].set(kept_BK)
