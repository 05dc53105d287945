"""Transformers model for a DiffEqFormer: a transformer whose layers are solver steps.

Requires PyTorch and transformers, not JAX, and no other file of code. Load its folder
with `AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)`.

With the solver `euler`, a step adds both terms at once, x + h (attention(x) +
feed_forward(x)) (Tong et al. 2025, arXiv 2503.01329); `lie_trotter` applies attention,
then feed-forward; `strang` half a feed-forward step before and half after. With
backward `reversible`, two states are coupled (McCallum and Foster 2024, 2410.11648).

B batch, L length, S length with cached tokens, D model, N heads, K key-value heads,
H head size, h rotated pairs, F feed-forward, V vocabulary.
"""

import math

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast as ModelOutput
from transformers.modeling_outputs import CausalLMOutputWithPast as CausalLMOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward
from transformers.utils import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

_RELEASED_EPS = 1e-6  # epsilon of the layers' norms with `chain_norms`
_COUPLING = 0.999  # of reversible steps
_ACTIVATIONS = {"exact_gelu": "gelu", "relu_squared": "relu2"}
# Name of the cache in outputs; transformers 5.24 renamed it.
_CACHE = "cache" if "cache" in ModelOutput.__dataclass_fields__ else "past_key_values"


class DiffEqFormerConfig(PretrainedConfig):
    """Model config; config.json has a value for every field."""

    model_type = "diffeq_former"
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_key_value_heads": "num_kv_heads",
        "intermediate_size": "d_ff",
        "max_position_embeddings": "max_len",
    }

    @property
    def num_hidden_layers(self) -> int:
        """Number of evaluations of attention, each with an entry in the cache."""
        return self.num_layers * (2 if self.backward == "reversible" else 1)


class DiffEqFormerLayerNorm(nn.LayerNorm):
    """LayerNorm, or RMSNorm if it is not centred, over the last axis in float32."""

    def __init__(self, size: int, eps: float, centred: bool, bias: bool):
        super().__init__(size, eps, bias=bias)
        self.centred = centred

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y - y.mean(-1, keepdim=True) if self.centred else y
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps) * self.weight
        return (y if self.bias is None else y + self.bias).to(x.dtype)


class DiffEqFormerAttention(nn.Module):
    """Causal attention; its forward pass returns the term and attention weights."""

    def __init__(self, config: DiffEqFormerConfig, layer_idx: int):
        super().__init__()
        c, self.config, self.layer_idx = config, config, layer_idx
        D, H, N, K = c.d_model, c.head_dim, c.num_heads, c.num_kv_heads
        self.num_key_value_groups, self.is_causal = N // K, True
        biases = "all" if c.block == "gpt" else c.attention_bias
        if c.block == "gpt":
            self.qkv_proj = nn.Linear(D, 3 * N * H)
        else:
            self.q_proj = nn.Linear(D, N * H, bias=biases != "none")
            self.k_proj = nn.Linear(D, K * H, bias=biases != "none")
            self.v_proj = nn.Linear(D, K * H, bias=biases != "none")
        self.o_proj = nn.Linear(N * H, D, bias=biases == "all")
        if c.qk_norm:
            self.q_norm = DiffEqFormerLayerNorm(H, c.norm_eps, False, False)
            self.k_norm = DiffEqFormerLayerNorm(H, c.norm_eps, False, False)

    def forward(self, x_BLD: Tensor, entry: int, rotation, mask, cache, **kwargs):
        c, shape = self.config, (*x_BLD.shape[:2], -1, self.config.head_dim)
        if c.block == "gpt":
            projected = self.qkv_proj(x_BLD).chunk(3, -1)
        else:
            projected = self.q_proj(x_BLD), self.k_proj(x_BLD), self.v_proj(x_BLD)
        q_BNLH, k_BKSH, v_BKSH = (x.view(shape).transpose(1, 2) for x in projected)
        if c.qk_norm:
            q_BNLH, k_BKSH = self.q_norm(q_BNLH), self.k_norm(k_BKSH)
        if rotation is not None:
            q_BNLH, k_BKSH = _rotate(q_BNLH, *rotation), _rotate(k_BKSH, *rotation)
        if cache is not None:
            k_BKSH, v_BKSH = cache.update(k_BKSH, v_BKSH, entry)
        attention = (c._attn_implementation, eager_attention_forward)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(*attention)
        kwargs["scaling"] = c.head_dim**-0.5
        output, weights = attend(self, q_BNLH, k_BKSH, v_BKSH, mask, **kwargs)
        return self.o_proj(output.reshape(*shape[:2], -1)), weights


class DiffEqFormerMLP(nn.Module):
    """Two linear maps with a GELU between them (gpt block), or SwiGLU (llama block)."""

    def __init__(self, config: DiffEqFormerConfig):
        super().__init__()
        c, gpt = config, config.block == "gpt"
        self.gate_proj = None if gpt else nn.Linear(c.d_model, c.d_ff, bias=False)
        self.up_proj = nn.Linear(c.d_model, c.d_ff, bias=gpt)
        self.down_proj = nn.Linear(c.d_ff, c.d_model, bias=gpt)
        default = "gelu_pytorch_tanh" if gpt else "silu"
        self.activate = ACT2FN[_ACTIVATIONS.get(c.activation, default)]

    def forward(self, x_BLD: Tensor) -> Tensor:
        if self.gate_proj is None:
            return self.down_proj(self.activate(self.up_proj(x_BLD)))
        gate_BLF = self.activate(self.gate_proj(x_BLD))
        return self.down_proj(gate_BLF * self.up_proj(x_BLD))


class DiffEqFormerLayer(GradientCheckpointingLayer):
    """A solver step, of the state x or of the states y and z of reversible steps."""

    def __init__(self, config: DiffEqFormerConfig, layer_idx: int):
        super().__init__()
        c, self.config, self.layer_idx = config, config, layer_idx
        gpt, eps = c.block == "gpt", _RELEASED_EPS if c.chain_norms else c.norm_eps
        norm = (c.d_model, eps, gpt, gpt or c.chain_norms)
        self.input_layernorm = DiffEqFormerLayerNorm(*norm)
        self.self_attn = DiffEqFormerAttention(c, layer_idx)
        self.post_attention_layernorm = DiffEqFormerLayerNorm(*norm)
        self.mlp = DiffEqFormerMLP(c)

    def forward(self, y_BLD: Tensor, z_BLD: Tensor | None = None, **context) -> tuple:
        """Return the states after the step; see `_step` for the context."""
        if z_BLD is None:
            return (self._step(y_BLD, 1, self.layer_idx, **context),)
        forward_BLD = self._step(z_BLD, 1, 2 * self.layer_idx, **context) - z_BLD
        y_BLD = _COUPLING * y_BLD + (1 - _COUPLING) * z_BLD + forward_BLD
        backward_BLD = self._step(y_BLD, -1, 2 * self.layer_idx + 1, **context) - y_BLD
        return y_BLD, z_BLD - backward_BLD

    def _step(self, x_BLD: Tensor, sign: int, entry: int, dtype, **context) -> Tensor:
        """Take a step forward (sign 1) or backward (-1), with its terms in `dtype`."""
        c, h = self.config, sign * self.config.horizon / self.config.num_layers

        def attention(x):
            y_BLD = self.input_layernorm(x.to(dtype))
            return self.self_attn(y_BLD, entry, **context)[0]

        def feed_forward(x):
            y_BLD = x.to(dtype)
            y_BLD = self.input_layernorm(y_BLD) if c.chain_norms else y_BLD
            return self.mlp(self.post_attention_layernorm(y_BLD))

        if c.solver == "euler":
            return x_BLD + h * (attention(x_BLD) + feed_forward(x_BLD))
        last = h / 2 if c.solver == "strang" else h
        if c.solver == "strang":
            x_BLD = x_BLD + h / 2 * feed_forward(x_BLD)
        x_BLD = x_BLD + h * attention(x_BLD)
        return x_BLD + last * feed_forward(x_BLD)


class DiffEqFormerPreTrainedModel(PreTrainedModel):
    """Base class: the features of the model that transformers asks for."""

    config_class = DiffEqFormerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["DiffEqFormerLayer"]
    _skip_keys_device_placement = ["cache", "past_key_values"]
    _supports_sdpa = _supports_flash_attn = _supports_attention_backend = True
    _can_record_outputs = {
        "hidden_states": DiffEqFormerLayer,
        "attentions": DiffEqFormerAttention,
    }


class DiffEqFormerModel(DiffEqFormerPreTrainedModel):
    """Embeddings, a layer for each solver step, and the final norm."""

    def __init__(self, config: DiffEqFormerConfig):
        super().__init__(config)
        c, gpt = config, config.block == "gpt"
        self.embed_tokens = nn.Embedding(c.vocab_size, c.d_model)
        learned = gpt and c.positions == "default"
        self.embed_positions = nn.Embedding(c.max_len, c.d_model) if learned else None
        layers = (DiffEqFormerLayer(c, k) for k in range(c.num_layers))
        self.layers = nn.ModuleList(layers)
        self.norm = DiffEqFormerLayerNorm(c.d_model, c.norm_eps, gpt, gpt)
        self.gradient_checkpointing = False
        self.post_init()

    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        past_key_values: Cache | None = None,  # name of the cache before 5.24
        **kwargs,
    ) -> ModelOutput:
        """Return the normalised state after the last step [B, L, D], and the cache."""
        c, cache = self.config, past_key_values if cache is None else cache
        x_BLD = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            cache = None  # layers are evaluated again in the backward pass
        elif use_cache and cache is None:
            cache = DynamicCache(config=c)
        if position_ids is None:
            position_ids = _positions(x_BLD, attention_mask, cache)
        mask = create_causal_mask(c, x_BLD, attention_mask, cache, position_ids)
        learned = self.embed_positions is not None
        x_BLD = x_BLD + self.embed_positions(position_ids) if learned else x_BLD
        rotation = None if learned else _rotation(c, position_ids)
        kwargs |= {"cache": cache, "position_ids": position_ids}
        kwargs |= {"dtype": x_BLD.dtype, "rotation": rotation, "mask": mask}
        states = 2 * (x_BLD.float(),) if c.backward == "reversible" else (x_BLD,)
        for layer in self.layers:
            states = layer(*states, **kwargs)
        x_BLD = self.norm(states[0].to(x_BLD.dtype))
        return ModelOutput(last_hidden_state=x_BLD, **{_CACHE: cache})


class DiffEqFormerForCausalLM(DiffEqFormerPreTrainedModel, GenerationMixin):
    """Decoder language model whose layers are solver steps."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: DiffEqFormerConfig):
        super().__init__(config)
        self.model = DiffEqFormerModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int = 0,  # 0: all
        **kwargs,
    ) -> CausalLMOutput:
        """Return logits [B, L, V] of the last `logits_to_keep` tokens, and the loss."""
        inputs = (input_ids, attention_mask, position_ids, inputs_embeds)
        out, c, loss = self.model(*inputs, **kwargs), self.config, None
        logits_BLV = self.lm_head(out.last_hidden_state[:, -logits_to_keep:])
        if c.logit_softcap:
            logits_BLV = c.logit_softcap * torch.tanh(logits_BLV / c.logit_softcap)
        if labels is not None:
            loss = self.loss_function(logits_BLV, labels, c.vocab_size, **kwargs)
        rest = {k: v for k, v in out.items() if k != "last_hidden_state"}
        return CausalLMOutput(loss=loss, logits=logits_BLV, **rest)


def _positions(x_BLD: Tensor, mask: Tensor | None, cache: Cache | None) -> Tensor:
    """Return positions [B, L] that count the tokens without padding."""
    (B, L), past = x_BLD.shape[:2], 0 if cache is None else cache.get_seq_length()
    if mask is not None and mask.ndim == 2:
        return (mask.long().cumsum(-1) - 1).clamp(min=0)[:, past : past + L]
    return (past + torch.arange(L, device=x_BLD.device)).expand(B, -1)


def _rotation(c: DiffEqFormerConfig, position_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines [B, 1, L, h] of rotary positions, in float32."""
    half = int(c.head_dim * c.rope_fraction) // 2
    index_h = torch.arange(half, device=position_BL.device)
    frequencies_h = c.rope_base ** (-index_h / half)  # radians per position
    if c.rope_kind == "linear":
        frequencies_h = frequencies_h / c.rope_factor
    elif c.rope_kind == "llama3":
        turns_h = c.rope_original_len * frequencies_h / (2 * math.pi)
        ramp_h = (turns_h - c.rope_low_turns) / (c.rope_high_turns - c.rope_low_turns)
        ramp_h = ramp_h.clamp(0, 1)  # 1: keep the frequency, 0: divide it
        frequencies_h = frequencies_h * (ramp_h + (1 - ramp_h) / c.rope_factor)
    angles_B1Lh = (position_BL[..., None].float() * frequencies_h)[:, None]
    return angles_B1Lh.cos(), angles_B1Lh.sin()


def _rotate(x_BNLH: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (x[i], x[i + h]) for i < h by angles, in float32."""
    h = cos.shape[-1]
    first, second, rest = x_BNLH.float().tensor_split((h, 2 * h), -1)
    rotated = first * cos - second * sin, second * cos + first * sin, rest
    return torch.cat(rotated, -1).to(x_BNLH.dtype)
