"""Llama and families that differ little, in the formats of transformers.

Mistral is a Llama without sliding windows; Qwen 2 has biases of queries, keys and
values; Qwen 3 normalises queries and keys. Linear maps are [outputs, inputs]. Rotary
embeddings rotate halves, as ours do, so no permutation is needed.
"""

import functools
from collections.abc import Callable, Mapping

from diffeq_former.config import ModelConfig
from diffeq_former.conversion.architecture import Architecture, by_layer
from diffeq_former.conversion.hf_settings import (
    expect,
    read_activation,
    size,
    write_activation,
)
from diffeq_former.conversion.rope import read_rope, write_rope_scaling
from diffeq_former.errors import UserError

MODULES = {
    "norm_1": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "query_norm": "self_attn.q_norm",
    "key_norm": "self_attn.k_norm",
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


def _read_config(
    own: Callable[[Mapping], dict], head_dim: int, given: Mapping
) -> ModelConfig:
    """Return the model that a config.json describes.

    Args:
      own: Returns the fields in which the family differs, and checks its settings.
      head_dim: The family's default; 0: hidden_size / num_attention_heads.
      given: The contents of config.json.
    """
    width, heads = size(given, "hidden_size"), size(given, "num_attention_heads")
    head_dim = given.get("head_dim") or head_dim
    return ModelConfig(
        block="llama",
        num_layers=size(given, "num_hidden_layers"),
        d_model=width,
        num_heads=heads,
        num_kv_heads=given.get("num_key_value_heads") or 0,
        head_dim=0 if head_dim * heads == width else head_dim,
        d_ff=size(given, "intermediate_size"),
        vocab_size=size(given, "vocab_size"),
        max_len=size(given, "max_position_embeddings"),
        norm_eps=given.get("rms_norm_eps", 1e-6),
        activation=read_activation(given, "hidden_act", *_SILU),
        tied_head=bool(given.get("tie_word_embeddings", False)),
        attention_dropout=given.get("attention_dropout", 0.0),
        **_read_rope(given),
        **{"solver": "lie_trotter"} | own(given),
    )


def read_bias(given: Mapping) -> dict:
    """Return our field for the setting `attention_bias`."""
    return {"attention_bias": "all" if given.get("attention_bias") else "none"}


def _read_rope(given: Mapping) -> dict:
    rope = read_rope(given)
    expect({"partial_rotary_factor": rope["rope_fraction"]}, "partial_rotary_factor", 1)
    return rope


def _of_llama(given: Mapping) -> dict:
    expect(given, "mlp_bias", False)
    return read_bias(given)


def _of_mistral(given: Mapping) -> dict:
    check_windows(given, given.get("sliding_window") is not None)
    return {}


def _of_qwen2(given: Mapping) -> dict:
    check_windows(given, bool(given.get("use_sliding_window")))
    return {"attention_bias": "qkv"}


def _of_qwen3(given: Mapping) -> dict:
    check_windows(given, bool(given.get("use_sliding_window")))
    return {"qk_norm": True, **read_bias(given)}


def check_windows(given: Mapping, in_use: bool) -> None:
    """Raise UserError if attention is limited to windows shorter than a sequence."""
    longest = size(given, "max_position_embeddings")
    window = given.get("sliding_window") or longest
    kinds = given.get("layer_types") or ["sliding_attention"]
    if in_use and "sliding_attention" in kinds and window < longest:
        raise UserError(
            f"sliding_window: expected none, or at least max_position_embeddings"
            f" ({longest}), got {window}; lower max_position_embeddings to it"
        )


def _write_config(own: Callable[[ModelConfig], dict], c: ModelConfig) -> dict:
    return {
        "num_hidden_layers": c.num_layers,
        "hidden_size": c.d_model,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_size,
        "intermediate_size": c.ff_dim,
        "vocab_size": c.vocab_size,
        "max_position_embeddings": c.max_len,
        "hidden_act": write_activation(c, _SILU[0]),
        "rms_norm_eps": c.norm_eps,
        "attention_bias": c.attention_bias == "all",
        "attention_dropout": c.attention_dropout,
        "tie_word_embeddings": c.tied_head,
        "rope_theta": c.rope_base,
        "rope_scaling": write_rope_scaling(c),
        **own(c),
    }


def family(
    name: str,
    model_type: str,
    read: Callable[[Mapping], dict],
    write: Callable[[ModelConfig], dict],
    *,
    head_dim: int = 0,
    modules: Mapping[str, str] = MODULES,
    **options,
) -> Architecture:
    """Return a family of models that resemble Llama.

    Args:
      name: What precedes ForCausalLM in the name of its class.
      model_type: Its `model_type` in config.json.
      read: Checks the settings of a config.json that Llama does not have, and returns
        the fields of our config that they decide.
      write: Returns these settings for a model.
      head_dim: The default of `head_dim`; 0: hidden_size / num_attention_heads.
      modules: Our names of linear maps and norms -> modules within a layer.
      **options: Further fields of `Architecture`.
    """
    return Architecture(
        model_type=model_type,
        class_name=f"{name}ForCausalLM",
        tensor_spec=by_layer("model.layers.{}", modules, _OUTER, outputs_first=True),
        read_config=functools.partial(_read_config, read, head_dim),
        write_config=functools.partial(_write_config, write),
        prefix="model.",
        ignored=r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",  # old files
        may_repeat=(_HEAD, _TOKENS),
        **options,
    )


def _without_windows(_) -> dict:
    return {"use_sliding_window": False}


LLAMA = family("Llama", "llama", _of_llama, lambda _: {"mlp_bias": False})
MISTRAL = family("Mistral", "mistral", _of_mistral, lambda _: {"sliding_window": None})
QWEN2 = family("Qwen2", "qwen2", _of_qwen2, _without_windows)
QWEN3 = family("Qwen3", "qwen3", _of_qwen3, _without_windows, head_dim=128)
