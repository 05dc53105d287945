"""Llama in the format of `LlamaForCausalLM`. Linear maps are [outputs, inputs].

Its rotary embedding rotates halves, as ours does, so no permutation is needed.
"""

from collections.abc import Mapping

from diffeq_former.config import ModelConfig
from diffeq_former.conversion.architecture import Architecture, by_layer
from diffeq_former.conversion.hf_settings import (
    expect,
    read_activation,
    size,
    write_activation,
)
from diffeq_former.errors import UserError

_UNITS = {
    "norm_1": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "attention_out": "self_attn.o_proj",
    "norm_2": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_TOKENS, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_OUTER = {
    ("embedding", "token"): _TOKENS,
    ("final_norm", "scale"): "model.norm.weight",
    ("head", "kernel"): _HEAD,
}
_SILU = ("silu", "swish")  # two names of the same activation
# For each kind of RoPE scaling: our fields -> their settings.
_SCALINGS = {
    "none": {},
    "linear": {"rope_factor": "factor"},
    "llama3": {
        "rope_factor": "factor",
        "rope_low_turns": "low_freq_factor",
        "rope_high_turns": "high_freq_factor",
        "rope_original_len": "original_max_position_embeddings",
    },
}


def _read_config(given: Mapping) -> ModelConfig:
    width, heads = size(given, "hidden_size"), size(given, "num_attention_heads")
    expect(given, "attention_bias", False)
    expect(given, "mlp_bias", False)
    expect(given, "head_dim", width // heads, None)
    return ModelConfig(
        block="llama",
        num_layers=size(given, "num_hidden_layers"),
        d_model=width,
        num_heads=heads,
        num_kv_heads=given.get("num_key_value_heads") or 0,
        d_ff=size(given, "intermediate_size"),
        vocab_size=size(given, "vocab_size"),
        max_len=size(given, "max_position_embeddings"),
        norm_eps=given.get("rms_norm_eps", 1e-6),
        activation=read_activation(given, "hidden_act", *_SILU),
        tied_head=bool(given.get("tie_word_embeddings", False)),
        attention_dropout=given.get("attention_dropout", 0.0),
        **_read_rope(given),
    )


def _read_rope(given: Mapping) -> dict:
    """Read `rope_parameters`, or the older `rope_theta` and `rope_scaling`."""
    rope = given.get("rope_parameters") or given.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    kind = "none" if kind == "default" else kind
    if kind not in _SCALINGS:
        known = ", ".join(_SCALINGS)
        raise UserError(f"rope_scaling: expected one of {known}, got {kind!r}")
    expect({**given, **rope}, "partial_rotary_factor", 1.0, None)
    base = rope.get("rope_theta", given.get("rope_theta", 10000.0))
    fields = {"rope_base": base, "rope_scaling": kind}
    for ours, theirs in _SCALINGS[kind].items():
        if theirs not in rope:
            raise UserError(f"rope_scaling: {kind} needs {theirs}")
        fields[ours] = rope[theirs]
    return fields


def _write_config(c: ModelConfig) -> dict:
    scaling = {
        theirs: getattr(c, ours) for ours, theirs in _SCALINGS[c.rope_scaling].items()
    }
    return {
        "num_hidden_layers": c.num_layers,
        "hidden_size": c.d_model,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "intermediate_size": c.ff_dim,
        "vocab_size": c.vocab_size,
        "max_position_embeddings": c.max_len,
        "hidden_act": write_activation(c, _SILU[0]),
        "rms_norm_eps": c.norm_eps,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": c.attention_dropout,
        "tie_word_embeddings": c.tied_head,
        "rope_theta": c.rope_base,
        "rope_scaling": {"rope_type": c.rope_scaling, **scaling} if scaling else None,
    }


LLAMA = Architecture(
    model_type="llama",
    class_name="LlamaForCausalLM",
    tensor_spec=by_layer("model.layers.{}", _UNITS, _OUTER, outputs_first=True),
    read_config=_read_config,
    write_config=_write_config,
    prefix="model.",
    ignored=r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",  # of old files
    may_repeat=(_HEAD, _TOKENS),
)
