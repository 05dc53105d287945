"""The Hugging Face format of models that are not part of transformers.

Tensors have the names of our parameters. The folder includes the model code,
modeling_diffeq_former.py, to which `auto_map` in config.json refers.
"""

from collections.abc import Mapping
from pathlib import Path as FilePath

from diffeq_former.config import ModelConfig
from diffeq_former.conversion.architecture import Architecture, Path, TensorSpec
from diffeq_former.conversion.hf_settings import size

CODE = FilePath(__file__).with_name("modeling_diffeq_former.py")

# The model fields that config.json holds.
_FIELDS = (
    "block solver backward horizon num_layers d_model num_heads num_kv_heads head_dim"
    " d_ff attention_bias vocab_size max_len tied_head qk_norm activation logit_softcap"
    " norm_eps chain_norms rope_base rope_scaling rope_factor rope_original_len"
    " rope_low_turns rope_high_turns"
).split()
# Fields whose defaults are resolved by a property, whose value is written instead.
_DERIVED = {
    "horizon": "interval",
    "num_kv_heads": "kv_heads",
    "head_dim": "head_size",
    "d_ff": "ff_dim",
}
_RENAMED = {"rope_scaling": "rope_kind"}  # transformers gives this name its own meaning


def _tensor_spec(c: ModelConfig, path: Path, shape: tuple[int, ...]) -> TensorSpec:
    return TensorSpec((".".join(path),), shape)


def _read_config(given: Mapping) -> ModelConfig:
    size(given, "num_layers")
    keys = {name: _RENAMED.get(name, name) for name in _FIELDS}
    return ModelConfig(**{n: given[key] for n, key in keys.items() if key in given})


def _write_config(c: ModelConfig) -> dict:
    names = {"AutoConfig": "DiffEqFormerConfig", "AutoModelForCausalLM": _CLASS}
    return {
        **{_RENAMED.get(n, n): getattr(c, _DERIVED.get(n, n)) for n in _FIELDS},
        "auto_map": {auto: f"{CODE.stem}.{name}" for auto, name in names.items()},
    }


_CLASS = "DiffEqFormerForCausalLM"
OWN = Architecture("diffeq_former", _CLASS, _tensor_spec, _read_config, _write_config)
