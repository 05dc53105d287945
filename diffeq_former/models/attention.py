"""Softmax attention, and the cache of keys and values.

B batch, L length, S keys, N heads, K key-value heads, H head.
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
        k_BSKH, v_BSKH, mask_BLS = self._update_cache(k_BLKH, v_BLKH, positions_BL)
        return jax.nn.dot_product_attention(
            q_BLNH, k_BSKH, v_BSKH, mask=mask_BLS[:, None], implementation="xla"
        )

    def _update_cache(self, k_BLKH, v_BLKH, positions_BL):
        """Write keys and values at their positions; return the cache and a mask.

        The cache may be shorter than `max_len`; entries beyond its end are dropped.
        """
        B, _, K, H = k_BLKH.shape
        shape = (B, self.config.max_len, K, H)
        sequences_B1 = jnp.arange(B)[:, None]
        cached = []
        for name, new_BLKH in (("keys", k_BLKH), ("values", v_BLKH)):
            cache = self.variable("cache", name, jnp.zeros, shape, new_BLKH.dtype)
            slots = cache.value.at[sequences_B1, positions_BL]
            cache.value = slots.set(new_BLKH, mode="drop")
            cached.append(cache.value)
        slots_S = jnp.arange(cached[0].shape[1])
        return *cached, slots_S[None, None, :] <= positions_BL[:, :, None]

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
