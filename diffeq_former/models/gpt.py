"""The GPT-2 block: LayerNorm, a fused query-key-value projection, GELU, biases.

With rotary positions in place of a learned table, it is the block of GPT-NeoX.

B batch, L length, D model, N heads, H head, F feed-forward.
"""

import jax

from diffeq_former.config import ModelConfig
from diffeq_former.models.activations import activation
from diffeq_former.models.block import Block
from diffeq_former.models.linear import linear
from diffeq_former.models.norms import (
    layer_norm,
    normalise_queries_and_keys,
    qk_norm_specs,
)
from diffeq_former.models.partition import FEED_FORWARD, constrain
from diffeq_former.models.positions import rotate
from diffeq_former.models.remat import recomputed
from diffeq_former.models.stabilisers import drop_unused_norms, term_input
from diffeq_former.models.weight_specs import LinearSpec, NormSpec, WeightSpecs


def weight_specs(c: ModelConfig) -> WeightSpecs:
    """Return the specifications of the block's linear maps and norms."""
    D, N, H, F = c.d_model, c.num_heads, c.head_size, c.ff_dim
    specs = {
        "norm_1": NormSpec(D, shift=True),
        "qkv": LinearSpec(
            (D, 3, N, H), ("embed", "qkv", "heads", "head_dim"), bias=True
        ),
        **qk_norm_specs(c),
        "attention_out": LinearSpec(
            (N, H, D), ("heads", "head_dim", "embed"), True, 2, writes_residual=True
        ),
        "norm_2": NormSpec(D, shift=True),
        "ff_in": LinearSpec((D, F), ("embed", "mlp"), bias=True),
        "ff_out": LinearSpec((F, D), ("mlp", "embed"), True, writes_residual=True),
    }
    return drop_unused_norms(c, specs)


def attention(c: ModelConfig, weights, x_BLD, positions_BL, attend) -> jax.Array:
    """Return the attention term at state x_BLD, see `Block`."""
    y_BLD = term_input(c, norm, weights, "norm_1", x_BLD)
    qkv_BL3NH = linear(weights["qkv"], y_BLD)
    q_BLNH, k_BLNH, v_BLNH = (qkv_BL3NH[:, :, i] for i in range(3))
    q_BLNH, k_BLNH = normalise_queries_and_keys(c, weights, q_BLNH, k_BLNH)
    q_BLNH, k_BLNH = rotate(c, positions_BL, q_BLNH, k_BLNH)
    return linear(weights["attention_out"], attend(q_BLNH, k_BLNH, v_BLNH), 2)


def feed_forward(c: ModelConfig, weights, x_BLD) -> jax.Array:
    """Return the feed-forward term at state x_BLD."""
    y_BLD = term_input(c, norm, weights, "norm_2", x_BLD)
    h_BLF = constrain(linear(weights["ff_in"], y_BLD), *FEED_FORWARD)

    @recomputed
    def activate_and_project(h_BLF):
        return linear(weights["ff_out"], activation(c, jax.nn.gelu)(h_BLF))

    return activate_and_project(h_BLF)


def norm(c: ModelConfig, weights, x_BLD) -> jax.Array:
    return layer_norm(weights, x_BLD, c.norm_eps)


GPT = Block(
    weight_specs,
    attention,
    feed_forward,
    norm,
    final_norm=layer_norm,
    final_norm_spec=lambda c: NormSpec(c.d_model, shift=True),
    tied_head=lambda c: c.tied_head or c.learned_positions,
)
