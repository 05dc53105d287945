"""The Hugging Face format of models that are not part of transformers.

Modules have the names that they have in a Llama, and linear maps are [outputs, inputs].
The folder includes the model code, modeling_diffeq_former.py, to which `auto_map` in
config.json refers.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path as FilePath

from diffeq_former.config import ModelConfig
from diffeq_former.conversion.architecture import Architecture, by_layer
from diffeq_former.conversion.hf_settings import size
from diffeq_former.conversion.llama import MODULES
from diffeq_former.models.blocks import BLOCKS

CODE = FilePath(__file__).with_name("modeling_diffeq_former.py")

_MODULES = MODULES | {
    "qkv": "self_attn.qkv_proj",
    "ff_in": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}
_OUTER = {
    ("embedding", "token"): "model.embed_tokens.weight",
    ("embedding", "position"): "model.embed_positions.weight",
    ("final_norm", "scale"): "model.norm.weight",
    ("final_norm", "shift"): "model.norm.bias",
    ("head", "kernel"): "lm_head.weight",
}
# The model fields that config.json holds.
_FIELDS = (
    "block solver backward horizon num_layers d_model num_heads num_kv_heads head_dim"
    " d_ff attention_bias vocab_size max_len qk_norm activation logit_softcap norm_eps"
    " chain_norms positions rope_fraction rope_base rope_scaling rope_factor"
    " rope_original_len rope_low_turns rope_high_turns"
).split()
# Fields whose defaults are resolved by a property, whose value is written instead.
_DERIVED = {
    "horizon": "interval",
    "num_kv_heads": "kv_heads",
    "head_dim": "head_size",
    "d_ff": "ff_dim",
}
_RENAMED = {"rope_scaling": "rope_kind"}  # transformers gives this name its own meaning
_TIED = "tie_word_embeddings"
_CLASSES = {
    "AutoConfig": "DiffEqFormerConfig",
    "AutoModel": "DiffEqFormerModel",
    "AutoModelForCausalLM": "DiffEqFormerForCausalLM",
}


def _read_config(given: Mapping) -> ModelConfig:
    size(given, "num_layers")
    keys = {name: _RENAMED.get(name, name) for name in _FIELDS}
    fields = {n: given[key] for n, key in keys.items() if key in given}
    c = ModelConfig(**fields)
    tied_head = bool(given.get(_TIED)) and not c.learned_positions
    return dataclasses.replace(c, tied_head=tied_head)


def _write_config(c: ModelConfig) -> dict:
    return {
        **{_RENAMED.get(n, n): getattr(c, _DERIVED.get(n, n)) for n in _FIELDS},
        _TIED: BLOCKS[c.block].tied_head(c),
        "auto_map": {auto: f"{CODE.stem}.{name}" for auto, name in _CLASSES.items()},
    }


OWN = Architecture(
    model_type="diffeq_former",
    class_name=_CLASSES["AutoModelForCausalLM"],
    tensor_spec=by_layer("model.layers.{}", _MODULES, _OUTER, outputs_first=True),
    read_config=_read_config,
    write_config=_write_config,
    prefix="model.",
    may_repeat=("lm_head.weight", "model.embed_tokens.weight"),
)
