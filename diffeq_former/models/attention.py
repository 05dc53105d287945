"""Softmax attention, and the cache of keys and values.

B batch, L length, S keys, N heads, K key-value heads, G = N / K, H head.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from diffeq_former.config import ModelConfig
from diffeq_former.hardware import Hardware
from diffeq_former.models.attention_kernels import KERNELS, choose, same_document
from diffeq_former.models.dropout import Dropout
from diffeq_former.models.partition import num_shards
from diffeq_former.models.remat import ATTENTION_OUTPUT, named


class Attend(nn.Module):
    """Causal attention; with `cached`, also over the tokens of earlier calls.

    Earlier tokens have their keys and values [B, K, S, H] in two collections of
    variables. "cache" is written, at `positions_BL`. "past", if there is one, is only
    read, which is faster: the first `length` [B] positions of a sequence are in it, and
    those that follow in "cache".

    Every call within a step is a module of its own, so that each stage of a solver has
    its own cache and its own dropout mask.
    """

    config: ModelConfig
    train: bool
    cached: bool
    hardware: Hardware

    @nn.compact
    def __call__(
        self, q_BLNH, k_BLKH, v_BLKH, positions_BL, segments_BL, sequences_B
    ) -> jax.Array:
        c, inputs = self.config, (q_BLNH, k_BLKH, v_BLKH, segments_BL)
        if self.cached:
            return self._over_cache(q_BLNH, k_BLKH, v_BLKH, positions_BL)
        if self.train and c.attention_dropout:
            return self._with_dropout(*inputs, sequences_B)
        L = q_BLNH.shape[1]
        kernel = choose(c, self.hardware, L, num_shards("length"))
        return KERNELS[kernel](*inputs)

    def _over_cache(self, q_BLNH, k_BLKH, v_BLKH, positions_BL) -> jax.Array:
        B = q_BLNH.shape[0]
        start_B = self.get_variable("past", "length", jnp.zeros(B, jnp.int32))
        k_BKSH, v_BKSH = self._update_cache(k_BLKH, v_BLKH, positions_BL, start_B)
        slots_1S = jnp.arange(k_BKSH.shape[2])[None]
        positions_BS = start_B[:, None] + slots_1S
        mask_BLS = positions_BS[:, None] <= positions_BL[:, :, None]
        parts = [(k_BKSH, v_BKSH, mask_BLS)]
        if self.has_variable("past", "keys"):
            past = tuple(self.get_variable("past", name) for name in ("keys", "values"))
            slots_1S = jnp.arange(past[0].shape[2])[None]
            parts.append((*past, (slots_1S < start_B[:, None])[:, None]))
        return _attend(q_BLNH, parts)

    def _update_cache(self, k_BLKH, v_BLKH, positions_BL, start_B):
        """Write keys and values at their positions from `start_B` on; return the cache.

        The cache may be shorter than `max_len`; entries beyond its end are dropped.
        """
        B, _, K, H = k_BLKH.shape
        shape = (B, K, self.config.max_len, H)
        sequences_B1, slots_BL = jnp.arange(B)[:, None], positions_BL - start_B[:, None]
        cached = []
        for name, new_BLKH in (("keys", k_BLKH), ("values", v_BLKH)):
            cache = self.variable("cache", name, jnp.zeros, shape, new_BLKH.dtype)
            # A negative slot would count from the end.
            slots_BL = jnp.where(slots_BL < 0, cache.value.shape[2], slots_BL)
            slots = cache.value.at[sequences_B1, :, slots_BL]
            cache.value = slots.set(new_BLKH, mode="drop")
            cached.append(cache.value)
        return tuple(cached)

    def _with_dropout(self, q_BLNH, k_BLKH, v_BLKH, segments_BL, sequences_B):
        B, L, N, H = q_BLNH.shape
        K = k_BLKH.shape[2]
        q_BLKGH = q_BLNH.reshape(B, L, K, N // K, H)
        scores = jnp.einsum(
            "blkgh,bskh->bkgls", q_BLKGH, k_BLKH, preferred_element_type=jnp.float32
        )
        mask_BLL = jnp.tril(jnp.ones((L, L), bool))[None]
        if segments_BL is not None:
            mask_BLL = mask_BLL & same_document(segments_BL, segments_BL)
        scores = jnp.where(mask_BLL[:, None, None], scores * H**-0.5, -jnp.inf)
        weights = jax.nn.softmax(scores).astype(v_BLKH.dtype)
        weights = Dropout(self.config.attention_dropout)(weights, sequences_B)
        o_BLKGH = jnp.einsum("bkgls,bskh->blkgh", weights, v_BLKH)
        return named(ATTENTION_OUTPUT, o_BLKGH.reshape(B, L, N, H))


def _attend(q_BLNH, parts: list[tuple]) -> jax.Array:
    """Return attention to the keys and values of all parts: k, v [B, K, S, H], mask.

    The softmax is in float32.
    """
    B, L, N, H = q_BLNH.shape
    K, dtype = parts[0][0].shape[1], parts[0][1].dtype
    q_BLKGH = q_BLNH.reshape(B, L, K, N // K, H)
    scores = []
    for k_BKSH, _, mask_BLS in parts:
        scores_BKGLS = jnp.einsum(
            "blkgh,bksh->bkgls", q_BLKGH, k_BKSH, preferred_element_type=jnp.float32
        )
        mask_B11LS = mask_BLS[:, None, None]
        scores.append(jnp.where(mask_B11LS, scores_BKGLS * H**-0.5, -jnp.inf))
    weights_BKGLS = jax.nn.softmax(jnp.concatenate(scores, axis=-1)).astype(dtype)
    o_BLKGH, start = 0.0, 0
    for _, v_BKSH, _ in parts:
        end = start + v_BKSH.shape[2]
        o_BLKGH += jnp.einsum(
            "bkgls,bksh->blkgh", weights_BKGLS[..., start:end], v_BKSH
        )
        start = end
    return o_BLKGH.reshape(B, L, N, H)
