"""The Llama block: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

With `chain_norms` it is the block of the paper's released code: the input of the
feed-forward is norm_2(norm_1(x)), and norms have a shift and an epsilon of 1e-6.

B batch, L length, D model, N heads, K key-value heads, H head, F feed-forward.
"""

import jax

from diffeq_former.config import ModelConfig
from diffeq_former.models.activations import activation
from diffeq_former.models.block import Block
from diffeq_former.models.linear import linear
from diffeq_former.models.norms import (
    normalise_queries_and_keys,
    qk_norm_specs,
    rms_norm,
)
from diffeq_former.models.partition import FEED_FORWARD, constrain
from diffeq_former.models.positions import rotate
from diffeq_former.models.remat import recomputed
from diffeq_former.models.stabilisers import drop_unused_norms, term_input
from diffeq_former.models.weight_specs import LinearSpec, NormSpec, WeightSpecs

_RELEASED_EPS = 1e-6


def weight_specs(c: ModelConfig) -> WeightSpecs:
    """Return the specifications of the block's linear maps and norms."""
    D, N, K, H, F = c.d_model, c.num_heads, c.kv_heads, c.head_size, c.ff_dim
    term_norm = NormSpec(D, shift=c.chain_norms)
    bias = c.attention_bias != "none"
    key_value = LinearSpec((D, K, H), ("embed", "kv_heads", "head_dim"), bias)
    specs = {
        "norm_1": term_norm,
        "query": LinearSpec((D, N, H), ("embed", "heads", "head_dim"), bias),
        "key": key_value,
        "value": key_value,
        **qk_norm_specs(c),
        "attention_out": LinearSpec(
            (N, H, D),
            ("heads", "head_dim", "embed"),
            c.attention_bias == "all",
            num_inputs=2,
            writes_residual=True,
        ),
        "norm_2": term_norm,
        "gate": LinearSpec((D, F), ("embed", "mlp"), bias=False),
        "up": LinearSpec((D, F), ("embed", "mlp"), bias=False),
        "down": LinearSpec((F, D), ("mlp", "embed"), False, writes_residual=True),
    }
    return drop_unused_norms(c, specs)


def attention(c: ModelConfig, weights, x_BLD, positions_BL, attend) -> jax.Array:
    """Return the attention term at state x_BLD, see `Block`."""
    y_BLD = term_input(c, norm, weights, "norm_1", x_BLD)
    q_BLNH, k_BLKH = (linear(weights[name], y_BLD) for name in ("query", "key"))
    q_BLNH, k_BLKH = normalise_queries_and_keys(c, weights, q_BLNH, k_BLKH)
    q_BLNH, k_BLKH = rotate(c, positions_BL, q_BLNH, k_BLKH)
    o_BLNH = attend(q_BLNH, k_BLKH, linear(weights["value"], y_BLD))
    return linear(weights["attention_out"], o_BLNH, 2)


def feed_forward(c: ModelConfig, weights, x_BLD) -> jax.Array:
    """Return the feed-forward term at state x_BLD."""
    if c.chain_norms:
        x_BLD = norm(c, weights["norm_1"], x_BLD)
    y_BLD = term_input(c, norm, weights, "norm_2", x_BLD)

    @recomputed
    def activate_and_project(gate_BLF, up_BLF):
        h_BLF = activation(c, jax.nn.silu)(gate_BLF) * up_BLF
        h_BLF = constrain(h_BLF, *FEED_FORWARD)
        return linear(weights["down"], h_BLF)

    return activate_and_project(
        linear(weights["gate"], y_BLD), linear(weights["up"], y_BLD)
    )


def norm(c: ModelConfig, weights, x_BLD) -> jax.Array:
    return rms_norm(weights, x_BLD, _RELEASED_EPS if c.chain_norms else c.norm_eps)


LLAMA = Block(
    weight_specs,
    attention,
    feed_forward,
    norm,
    final_norm=rms_norm,
    final_norm_spec=lambda c: NormSpec(c.d_model, shift=False),
    tied_head=lambda c: c.tied_head,
)
