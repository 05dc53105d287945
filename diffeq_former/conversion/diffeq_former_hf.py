"""Models that transformers has no name for: under our own keys, with a file of code.

The file is modeling_diffeq_former.py, which config.json names in `auto_map`.
"""

from collections.abc import Mapping
from pathlib import Path as FilePath

from diffeq_former.config import ModelConfig
from diffeq_former.conversion.architecture import Architecture, Path, Place
from diffeq_former.conversion.hf_settings import size

CODE = FilePath(__file__).with_name("modeling_diffeq_former.py")

# What config.json says beside the sizes that may be derived.
_FIELDS = (
    "block solver horizon num_layers d_model num_heads num_kv_heads d_ff vocab_size"
    " max_len tied_head norm_eps chain_norms rope_base rope_scaling rope_factor"
    " rope_original_len rope_low_turns rope_high_turns"
).split()
_DERIVED = {"horizon": "interval", "num_kv_heads": "kv_heads", "d_ff": "ff_dim"}
_THEIRS = {"rope_scaling": "rope_kind"}  # transformers takes this name for its own


def _place(c: ModelConfig, path: Path, shape: tuple[int, ...]) -> Place:
    return Place((".".join(path),), shape)


def _read_config(given: Mapping) -> ModelConfig:
    size(given, "num_layers")
    keys = {name: _THEIRS.get(name, name) for name in _FIELDS}
    return ModelConfig(**{n: given[key] for n, key in keys.items() if key in given})


def _write_config(c: ModelConfig) -> dict:
    names = {"AutoConfig": "DiffEqFormerConfig", "AutoModelForCausalLM": _CLASS}
    return {
        **{_THEIRS.get(n, n): getattr(c, _DERIVED.get(n, n)) for n in _FIELDS},
        "auto_map": {auto: f"{CODE.stem}.{name}" for auto, name in names.items()},
    }


_CLASS = "DiffEqFormerForCausalLM"
OWN = Architecture("diffeq_former", _CLASS, _place, _read_config, _write_config)
