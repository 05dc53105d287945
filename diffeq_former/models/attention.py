"""Softmax attention over given queries, keys and values, and the cache of the latter.

B batch, L length, S keys, N heads, K key-value heads, H head.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from diffeq_former.config import ModelConfig


class Attend(nn.Module):
    """Causal attention; with `cached`, over all that was seen at earlier calls.

    Each place where a step attends is a module of its own, so every stage of every
    solver has its own cache, and draws its own dropout.
    """

    config: ModelConfig
    train: bool
    cached: bool

    @nn.compact
    def __call__(self, q_BLNH, k_BLKH, v_BLKH, positions_BL, segments_BL) -> jax.Array:
        mask_BLS = None
        if self.cached:
            k_BSKH, v_BSKH, mask_BLS = self._remember(k_BLKH, v_BLKH, positions_BL)
        else:
            k_BSKH, v_BSKH = k_BLKH, v_BLKH
            if segments_BL is not None:
                mask_BLS = segments_BL[:, :, None] == segments_BL[:, None, :]
        if self.train and self.config.attention_dropout:
            return self._with_dropout(q_BLNH, k_BSKH, v_BSKH, mask_BLS)
        return jax.nn.dot_product_attention(
            q_BLNH,
            k_BSKH,
            v_BSKH,
            mask=None if mask_BLS is None else mask_BLS[:, None],
            is_causal=not self.cached,
            implementation=_implementation(self.config, mask_BLS),
        )

    def _remember(self, k_BLKH, v_BLKH, positions_BL):
        """Writes keys and values at their positions; returns all of them and a mask."""
        B, _, K, H = k_BLKH.shape
        shape = (B, self.config.max_len, K, H)
        rows_B1 = jnp.arange(B)[:, None]
        cached = []
        for name, new_BLKH in (("keys", k_BLKH), ("values", v_BLKH)):
            cache = self.variable("cache", name, jnp.zeros, shape, new_BLKH.dtype)
            cache.value = cache.value.at[rows_B1, positions_BL].set(new_BLKH)
            cached.append(cache.value)
        slots_S = jnp.arange(self.config.max_len)
        return *cached, slots_S[None, None, :] <= positions_BL[:, :, None]

    def _with_dropout(self, q_BLNH, k_BSKH, v_BSKH, mask_BLS) -> jax.Array:
        B, L, N, H = q_BLNH.shape
        K = k_BSKH.shape[2]
        q_BLKGH = q_BLNH.reshape(B, L, K, N // K, H)
        scores = jnp.einsum(
            "blkgh,bskh->bkgls", q_BLKGH, k_BSKH, preferred_element_type=jnp.float32
        )
        causal_LS = jnp.tril(jnp.ones((L, L), bool))[None]
        mask_BLS = causal_LS if mask_BLS is None else mask_BLS & causal_LS
        scores = jnp.where(mask_BLS[:, None, None], scores * H**-0.5, -jnp.inf)
        weights = jax.nn.softmax(scores).astype(v_BSKH.dtype)
        weights = nn.Dropout(self.config.attention_dropout, deterministic=False)(
            weights
        )
        return jnp.einsum("bkgls,bskh->blkgh", weights, v_BSKH).reshape(B, L, N, H)


def _implementation(config: ModelConfig, mask_BLS) -> str:
    """The fused kernel where there is one for this case: NVIDIA GPUs, bfloat16."""
    fused = jax.default_backend() == "gpu" and config.dtype == "bfloat16"
    return "cudnn" if fused and mask_BLS is None else "xla"
