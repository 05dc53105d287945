"""GPT-2 in the format of `GPT2LMHeadModel`. Linear maps are [inputs, outputs]."""

from collections.abc import Mapping

from diffeq_former.config import ModelConfig
from diffeq_former.conversion.architecture import Architecture, by_layer
from diffeq_former.conversion.hf_settings import (
    expect,
    read_activation,
    size,
    write_activation,
)

_UNITS = {
    "norm_1": "ln_1",
    "qkv": "attn.c_attn",
    "attention_out": "attn.c_proj",
    "norm_2": "ln_2",
    "ff_in": "mlp.c_fc",
    "ff_out": "mlp.c_proj",
}
_TOKENS = "transformer.wte.weight"
_OUTER = {
    ("embedding", "token"): _TOKENS,
    ("embedding", "position"): "transformer.wpe.weight",
    ("final_norm", "scale"): "transformer.ln_f.weight",
    ("final_norm", "shift"): "transformer.ln_f.bias",
}
# Two names of GELU in its tanh approximation.
GELU = ("gelu_new", "gelu_pytorch_tanh")


def _read_config(given: Mapping) -> ModelConfig:
    expect(given, "scale_attn_weights", True)
    expect(given, "scale_attn_by_inverse_layer_idx", False)
    expect(given, "add_cross_attention", False)
    expect(given, "tie_word_embeddings", True)
    return ModelConfig(
        block="gpt",
        solver="lie_trotter",
        num_layers=size(given, "n_layer"),
        d_model=size(given, "n_embd"),
        num_heads=size(given, "n_head"),
        d_ff=given.get("n_inner") or 0,
        vocab_size=size(given, "vocab_size"),
        max_len=size(given, "n_positions"),
        norm_eps=given.get("layer_norm_epsilon", 1e-5),
        activation=read_activation(given, "activation_function", *GELU),
        dropout=given.get("resid_pdrop", 0.1),
        attention_dropout=given.get("attn_pdrop", 0.1),
    )


def _write_config(c: ModelConfig) -> dict:
    return {
        "n_layer": c.num_layers,
        "n_embd": c.d_model,
        "n_head": c.num_heads,
        "n_inner": c.ff_dim,
        "vocab_size": c.vocab_size,
        "n_positions": c.max_len,
        "n_ctx": c.max_len,  # the older name, which llama.cpp reads
        "activation_function": write_activation(c, GELU[0]),
        "layer_norm_epsilon": c.norm_eps,
        "embd_pdrop": c.dropout,
        "resid_pdrop": c.dropout,
        "attn_pdrop": c.attention_dropout,
        "tie_word_embeddings": True,
    }


GPT2 = Architecture(
    model_type="gpt2",
    class_name="GPT2LMHeadModel",
    tensor_spec=by_layer("transformer.h.{}", _UNITS, _OUTER, outputs_first=False),
    read_config=_read_config,
    write_config=_write_config,
    prefix="transformer.",
    ignored=r"transformer\.h\.\d+\.attn\.(masked_)?bias",  # causal masks in old files
    may_repeat=("lm_head.weight", _TOKENS),
)
