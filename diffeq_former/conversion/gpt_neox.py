"""The gpt block with rotary positions, in the format of `GPTNeoXForCausalLM` (Pythia).

With `use_parallel_residual`, its default, a layer adds attention and feed-forward at
once, as euler does; without, one after the other, as lie_trotter does. Linear maps are
[outputs, inputs], and queries, keys and values are interleaved head by head.
"""

from collections.abc import Mapping

import jax
import numpy as np

from diffeq_former.config import ModelConfig
from diffeq_former.conversion.architecture import Architecture, Path, by_layer
from diffeq_former.conversion.gpt2 import GELU
from diffeq_former.conversion.hf_settings import (
    expect,
    read_activation,
    size,
    write_activation,
)
from diffeq_former.conversion.rope import read_rope, write_rope_scaling

_MODULES = {
    "norm_1": "input_layernorm",
    "qkv": "attention.query_key_value",
    "attention_out": "attention.dense",
    "norm_2": "post_attention_layernorm",
    "ff_in": "mlp.dense_h_to_4h",
    "ff_out": "mlp.dense_4h_to_h",
}
_TOKENS, _HEAD = "gpt_neox.embed_in.weight", "embed_out.weight"
_OUTER = {
    ("embedding", "token"): _TOKENS,
    ("final_norm", "scale"): "gpt_neox.final_layer_norm.weight",
    ("final_norm", "shift"): "gpt_neox.final_layer_norm.bias",
    ("head", "kernel"): _HEAD,
}


def _read_config(given: Mapping) -> ModelConfig:
    expect(given, "attention_bias", True)
    rope = {
        "rope_theta": given.get("rotary_emb_base", 10000.0),
        "partial_rotary_factor": given.get("rotary_pct", 0.25),
    }
    return ModelConfig(
        block="gpt",
        positions="rotary",
        solver="euler" if given.get("use_parallel_residual", True) else "lie_trotter",
        num_layers=size(given, "num_hidden_layers"),
        d_model=size(given, "hidden_size"),
        num_heads=size(given, "num_attention_heads"),
        d_ff=size(given, "intermediate_size"),
        vocab_size=size(given, "vocab_size"),
        max_len=size(given, "max_position_embeddings"),
        norm_eps=given.get("layer_norm_eps", 1e-5),
        activation=read_activation(
            {"hidden_act": "gelu"} | dict(given), "hidden_act", *GELU
        ),
        tied_head=bool(given.get("tie_word_embeddings", False)),
        dropout=given.get("hidden_dropout", 0.0),
        attention_dropout=given.get("attention_dropout", 0.0),
        **read_rope(rope | dict(given)),
    )


def _write_config(c: ModelConfig) -> dict:
    return {
        "use_parallel_residual": c.solver == "euler",
        "num_hidden_layers": c.num_layers,
        "hidden_size": c.d_model,
        "num_attention_heads": c.num_heads,
        "intermediate_size": c.ff_dim,
        "vocab_size": c.vocab_size,
        "max_position_embeddings": c.max_len,
        "layer_norm_eps": c.norm_eps,
        "hidden_act": write_activation(c, GELU[0]),
        "attention_bias": True,
        "tie_word_embeddings": c.tied_head,
        "hidden_dropout": c.dropout,
        "attention_dropout": c.attention_dropout,
        "rotary_emb_base": c.rope_base,
        "rotary_pct": c.rope_fraction,
        "rope_scaling": write_rope_scaling(c),
    }


def _to_theirs(c: ModelConfig, weights: dict) -> dict:
    return weights | {"qkv": jax.tree.map(_exchange_3_and_heads, weights["qkv"])}


def _to_ours(c: ModelConfig, path: Path, stored: np.ndarray) -> np.ndarray:
    if path[:2] != ("weights", "qkv"):
        return stored
    *others, heads, head_size = stored.shape
    return _exchange_3_and_heads(stored.reshape(*others[:-1], heads, 3, head_size))


def _exchange_3_and_heads(x: np.ndarray) -> np.ndarray:
    """Transpose [..., 3, N, H] to [..., N, 3, H], or the other way round."""
    return x.swapaxes(-3, -2)


GPT_NEOX = Architecture(
    model_type="gpt_neox",
    class_name="GPTNeoXForCausalLM",
    tensor_spec=by_layer("gpt_neox.layers.{}", _MODULES, _OUTER, outputs_first=True),
    read_config=_read_config,
    write_config=_write_config,
    prefix="gpt_neox.",
    ignored=r"gpt_neox\.layers\.\d+\.attention\."  # in old files
    r"(bias|masked_bias|rotary_emb\.inv_freq)",
    to_theirs=_to_theirs,
    to_ours=_to_ours,
    may_repeat=(_HEAD, _TOKENS),
)
