"""Transformers model for a DiffEqFormer: a transformer whose layers are solver steps.

Requires PyTorch and transformers, not JAX, and no other file of code. Load its folder
with `AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)`.

With the solver `euler`, a step adds both terms at once, x + h (attention(x) +
feed_forward(x)) (Tong et al. 2025, arXiv 2503.01329); `strang` applies half a
feed-forward step before and half after the attention step; `lie_trotter` applies the
attention step and then the feed-forward step. With backward `reversible`, the steps of
two states y and z are coupled (McCallum and Foster 2024, arXiv 2410.11648).

B batch, L length, S length including cached tokens, D model, N heads, K key-value
heads, H head size, h half the head size.
"""

import math

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.modeling_outputs import CausalLMOutputWithPast

_RELEASED_EPS = 1e-6  # epsilon of the layers' norms with `chain_norms`
_COUPLING = 0.999  # of reversible steps


class DiffEqFormerConfig(PretrainedConfig):
    """Model config; config.json has a value for every field."""

    model_type = "diffeq_former"
    attribute_map = {
        "hidden_size": "d_model",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "num_key_value_heads": "num_kv_heads",
        "intermediate_size": "d_ff",
        "max_position_embeddings": "max_len",
    }


class DiffEqFormerForCausalLM(PreTrainedModel, GenerationMixin):
    """Decoder language model with a weight table of one entry per solver step."""

    config_class = DiffEqFormerConfig

    def __init__(self, config: DiffEqFormerConfig):
        super().__init__(config)
        D, V = config.d_model, config.vocab_size
        self.embedding = _parameters(token=(V, D))
        if config.block == "gpt":
            self.embedding["position"] = _zeros(config.max_len, D)
        self.weights = nn.ModuleDict(_units(config))
        self.final_norm = _norm(D, shift=config.block == "gpt")
        if config.block == "llama" and not config.tied_head:
            self.head = _parameters(kernel=(D, V))
        self.post_init()

    def get_input_embeddings(self) -> None:
        return None

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: DynamicCache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **kwargs,
    ) -> CausalLMOutputWithPast:
        """Compute next-token logits [B, L, V].

        Args:
          input_ids: Tokens [B, L].
          attention_mask: 0 for padding, [B, S]; includes cached tokens.
          position_ids: Positions [B, L]; by default tokens are counted without padding.
          past_key_values: Keys and values of the preceding tokens.
          use_cache: Whether to return keys and values.
          logits_to_keep: Number of last tokens to compute logits for; 0: all.
          **kwargs: Ignored; generation passes further arguments.
        """
        c = self.config
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        position_BL, mask_BLS = _positions_and_mask(input_ids, attention_mask, past)
        if position_ids is not None:
            position_BL = position_ids
        x_BLD = self.embedding["token"][input_ids]
        if c.block == "gpt":
            x_BLD = x_BLD + self.embedding["position"][position_BL]
        context = (position_BL, mask_BLS, past_key_values)
        if c.backward == "reversible":
            x_BLD = self._coupled_steps(x_BLD, context)
        else:
            for k in range(c.num_layers):
                x_BLD = self._step(k, x_BLD, context)
        x_BLD = self._normalise(self.final_norm, x_BLD, c.norm_eps)[:, -logits_to_keep:]
        tied = not hasattr(self, "head")
        head_DV = self.embedding["token"].T if tied else self.head["kernel"]
        logits_BLV = x_BLD @ head_DV
        if c.logit_softcap:
            logits_BLV = c.logit_softcap * torch.tanh(logits_BLV / c.logit_softcap)
        return CausalLMOutputWithPast(
            logits=logits_BLV, past_key_values=past_key_values
        )

    def _coupled_steps(self, x_BLD: Tensor, context) -> Tensor:
        cache = context[-1]
        if cache is not None:  # two entries for each step
            missing = 2 * self.config.num_layers - len(cache.layers)
            cache.layers.extend(DynamicLayer() for _ in range(missing))
        y_BLD = z_BLD = x_BLD.float()
        for k in range(self.config.num_layers):
            forward_BLD = self._step(k, z_BLD, context, (1, 2 * k)) - z_BLD
            y_BLD = _COUPLING * y_BLD + (1 - _COUPLING) * z_BLD + forward_BLD
            z_BLD = z_BLD - (self._step(k, y_BLD, context, (-1, 2 * k + 1)) - y_BLD)
        return y_BLD.to(x_BLD.dtype)

    def _step(
        self, k: int, x_BLD: Tensor, context, coupled: tuple[int, int] | None = None
    ) -> Tensor:
        """Take solver step k, with the weights of layer k.

        Args:
          k: The number of the step.
          x_BLD: The state.
          context: Positions, mask and cache.
          coupled: The sign of the step and the number of its entry in the cache; by
            default 1 and k.
        """
        position_BL, mask_BLS, cache = context
        sign, entry = coupled or (1, k)
        h = sign * self.config.horizon / self.config.num_layers
        w = {
            name: {n: p[k] for n, p in unit.items()}
            for name, unit in self.weights.items()
        }

        def attend(q_BLNH, k_BLKH, v_BLKH):
            q, keys, values = (x.transpose(1, 2) for x in (q_BLNH, k_BLKH, v_BLKH))
            if cache is not None:
                keys, values = cache.update(keys, values, entry)
            groups = q.shape[1] // keys.shape[1]
            keys, values = (x.repeat_interleave(groups, 1) for x in (keys, values))
            o = nn.functional.scaled_dot_product_attention(
                q, keys, values, mask_BLS[:, None]
            )
            return o.transpose(1, 2)

        def attention(x):
            return self._attention(w, x.to(self.dtype), position_BL, attend)

        def feed_forward(x):
            return self._feed_forward(w, x.to(self.dtype))

        if self.config.solver == "euler":
            return x_BLD + h * (attention(x_BLD) + feed_forward(x_BLD))
        if self.config.solver == "strang":
            x_BLD = x_BLD + h / 2 * feed_forward(x_BLD)
            x_BLD = x_BLD + h * attention(x_BLD)
            return x_BLD + h / 2 * feed_forward(x_BLD)
        x_BLD = x_BLD + h * attention(x_BLD)
        return x_BLD + h * feed_forward(x_BLD)

    def _attention(self, w: dict, x_BLD, position_BL, attend) -> Tensor:
        y_BLD = self._normalise(w["norm_1"], x_BLD)
        if self.config.block == "gpt":
            q_BLNH, k_BLKH, v_BLKH = _linear(w["qkv"], y_BLD).unbind(2)
        else:
            q_BLNH, k_BLKH, v_BLKH = (
                _linear(w[n], y_BLD) for n in ("query", "key", "value")
            )
        if self.config.qk_norm:
            q_BLNH = _rms_norm(w["query_norm"], q_BLNH, self.config.norm_eps)
            k_BLKH = _rms_norm(w["key_norm"], k_BLKH, self.config.norm_eps)
        if self.config.block == "llama":
            frequencies_h = _frequencies(self.config).to(x_BLD.device)
            q_BLNH = _rotate(q_BLNH, position_BL, frequencies_h)
            k_BLKH = _rotate(k_BLKH, position_BL, frequencies_h)
        return _linear(w["attention_out"], attend(q_BLNH, k_BLKH, v_BLKH), 2)

    def _feed_forward(self, w: dict, x_BLD: Tensor) -> Tensor:
        if self.config.chain_norms:
            x_BLD = self._normalise(w["norm_1"], x_BLD)
        y_BLD = self._normalise(w["norm_2"], x_BLD)
        if self.config.block == "gpt":
            return _linear(w["ff_out"], self._activate(_linear(w["ff_in"], y_BLD)))
        gate_BLF = self._activate(_linear(w["gate"], y_BLD))
        return _linear(w["down"], gate_BLF * _linear(w["up"], y_BLD))

    def _activate(self, x: Tensor) -> Tensor:
        if self.config.activation == "relu_squared":
            return nn.functional.relu(x).square()
        if self.config.block == "gpt":
            return nn.functional.gelu(x, approximate="tanh")
        return nn.functional.silu(x)

    def _normalise(self, w, x: Tensor, eps: float | None = None) -> Tensor:
        """Apply LayerNorm (gpt block) or RMSNorm (llama block), in float32."""
        c, y = self.config, x.float()
        if c.block == "gpt":
            y = y - y.mean(-1, keepdim=True)
        eps = eps or (_RELEASED_EPS if c.chain_norms else c.norm_eps)
        return _rms_norm(w, y, eps).to(x.dtype)


def _units(c: DiffEqFormerConfig) -> dict[str, nn.ParameterDict]:
    """Return the weights of all layers, stacked along a leading axis."""
    L, D, N, K, F = c.num_layers, c.d_model, c.num_heads, c.num_kv_heads, c.d_ff
    H, gpt = c.head_dim, c.block == "gpt"
    shift = gpt or c.chain_norms
    units = {"norm_1": _norm(L, D, shift=shift), "norm_2": _norm(L, D, shift=shift)}
    if c.qk_norm:
        norms = ("query_norm", "key_norm")
        units |= {name: _norm(L, H, shift=False) for name in norms}
    if gpt:
        return units | {
            "qkv": _parameters(kernel=(L, D, 3, N, H), bias=(L, 3, N, H)),
            "attention_out": _parameters(kernel=(L, N, H, D), bias=(L, D)),
            "ff_in": _parameters(kernel=(L, D, F), bias=(L, F)),
            "ff_out": _parameters(kernel=(L, F, D), bias=(L, D)),
        }
    biases = c.attention_bias != "none"
    out = {"bias": (L, D)} if c.attention_bias == "all" else {}
    for name, heads in (("query", N), ("key", K), ("value", K)):
        bias = {"bias": (L, heads, H)} if biases else {}
        units[name] = _parameters(kernel=(L, D, heads, H), **bias)
    return units | {
        "attention_out": _parameters(kernel=(L, N, H, D), **out),
        "gate": _parameters(kernel=(L, D, F)),
        "up": _parameters(kernel=(L, D, F)),
        "down": _parameters(kernel=(L, F, D)),
    }


def _norm(*shape: int, shift: bool) -> nn.ParameterDict:
    names = ["scale"] + ["shift"] * shift
    return _parameters(**dict.fromkeys(names, shape))


def _parameters(**shapes: tuple[int, ...]) -> nn.ParameterDict:
    return nn.ParameterDict({name: _zeros(*shape) for name, shape in shapes.items()})


def _zeros(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape))


def _rms_norm(w: dict, x: Tensor, eps: float) -> Tensor:
    """Apply RMSNorm over the last axis, in float32."""
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * w["scale"]
    return (y + w["shift"] if "shift" in w else y).to(x.dtype)


def _linear(w: dict, x: Tensor, num_inputs: int = 1) -> Tensor:
    y = torch.tensordot(x, w["kernel"], num_inputs)
    return y + w["bias"] if "bias" in w else y


def _positions_and_mask(tokens_BL: Tensor, padding_BS: Tensor | None, past: int):
    """Return positions [B, L] and the causal attention mask [B, L, S], S = past + L."""
    B, L = tokens_BL.shape
    index_S = torch.arange(past + L, device=tokens_BL.device)
    index_L = index_S[past:]
    mask_BLS = (index_S[None] <= index_L[:, None])[None].expand(B, -1, -1)
    if padding_BS is None:
        return index_L[None].expand(B, -1), mask_BLS
    real_BS = padding_BS.bool()
    # Every token attends to itself, so that no row of the mask is empty for padding.
    itself_LS = index_S[None] == index_L[:, None]
    position_BS = (real_BS.long().cumsum(-1) - 1).clamp(min=0)
    return position_BS[:, past:], (mask_BLS & real_BS[:, None]) | itself_LS[None]


def _frequencies(c: DiffEqFormerConfig) -> Tensor:
    """Return the RoPE frequencies [h], in radians per position."""
    half = c.head_dim // 2
    frequencies_h = c.rope_base ** (-torch.arange(half).float() / half)
    if c.rope_kind == "linear":
        return frequencies_h / c.rope_factor
    if c.rope_kind == "llama3":
        turns_h = c.rope_original_len * frequencies_h / (2 * math.pi)
        ramp_h = (turns_h - c.rope_low_turns) / (c.rope_high_turns - c.rope_low_turns)
        ramp_h = ramp_h.clamp(0, 1)  # 1: keep the frequency, 0: divide it
        return frequencies_h * (ramp_h + (1 - ramp_h) / c.rope_factor)
    return frequencies_h


def _rotate(x_BLNH: Tensor, position_BL: Tensor, frequencies_h: Tensor) -> Tensor:
    """Rotate the pairs (x[i], x[i + h]) by position * frequency, in float32."""
    angles_BL1h = (position_BL[..., None].float() * frequencies_h)[:, :, None]
    cos, sin = angles_BL1h.cos(), angles_BL1h.sin()
    first, second = x_BLNH.float().chunk(2, -1)
    rotated = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat(rotated, -1).to(x_BLNH.dtype)
