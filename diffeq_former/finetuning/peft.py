"""How PEFT describes an adapter of a block's Hugging Face twin."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

from diffeq_former.config import ModelConfig, Stabilisers
from diffeq_former.errors import UserError
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.lora import is_adapted, linear_names
from diffeq_former.models.units import Linear

SETTINGS = "adapter_config.json"

# Of what else PEFT offers, the one value that is ours.
_PLAIN = {"peft_type": "LORA", "bias": "none", "use_rslora": False, "use_dora": False}

# Of each block: where the layers are, and the modules of a layer by our names.
TWINS = {
    "gpt": (
        "transformer.h",
        {
            "qkv": "attn.c_attn",
            "attention_out": "attn.c_proj",
            "ff_in": "mlp.c_fc",
            "ff_out": "mlp.c_proj",
        },
    ),
    "llama": (
        "model.layers",
        {
            "query": "self_attn.q_proj",
            "key": "self_attn.k_proj",
            "value": "self_attn.v_proj",
            "attention_out": "self_attn.o_proj",
            "gate": "mlp.gate_proj",
            "up": "mlp.up_proj",
            "down": "mlp.down_proj",
        },
    ),
}


def check_twin(c: ModelConfig) -> None:
    """Raises UserError if no Hugging Face model computes what this one does."""
    plain = c.weights == "layer_table" and c.solver == "lie_trotter"
    stabilised = c.stabilisers == Stabilisers()
    if not plain or c.chain_norms or not stabilised:
        what = f"of {c.weights} and {c.solver}"
        if plain:
            what = "with chain_norms" if stabilised else f"with {c.stabilisers}"
        raise UserError(
            f"a model {what} has no Hugging Face twin, for which adapters are stored"
            " alone: that is a layer_table with lie_trotter; merge the run instead with"
            " tools/convert.py merge_lora --workdir=... --output=..."
        )


def adapted(c: ModelConfig) -> Iterator[tuple[str, str, Linear, float]]:
    """Of each adapted unit: its name, its module, itself, and what its B is times."""
    units, (_, modules) = BLOCKS[c.block].units(c), TWINS[c.block]
    for name in linear_names(units):
        if is_adapted(c, name):
            length = c.step_size if units[name].writes_residual else 1.0
            yield name, modules[name], units[name], length


def settings(c: ModelConfig) -> dict:
    """What goes into adapter_config.json."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": c.lora_rank,
        "lora_alpha": c.lora_alpha,
        "lora_dropout": c.lora_dropout,
        "target_modules": [module for _, module, _, _ in adapted(c)],
        "fan_in_fan_out": c.block == "gpt",  # GPT-2 stores its matrices transposed
        "bias": "none",
    }


def read_settings(folder: Path, c: ModelConfig) -> ModelConfig:
    """The model with the adapter that the folder's adapter_config.json describes.

    Raises:
      UserError: if that is damaged, no plain LoRA, or of modules that c has not.
    """
    path = folder / SETTINGS
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        rank, alpha = int(read["r"]), float(read["lora_alpha"])
        targets = [str(target) for target in read["target_modules"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is missing or damaged: {error!r}") from error
    for key, value in _PLAIN.items():
        if read.get(key, value) != value:
            raise UserError(f"{path}: {key} is {read[key]!r}, expected {value!r}")
    if rank < 1:
        raise UserError(f"{path}: r: expected 1 or more, got {rank}")
    names = [name for target in targets for name in _named(path, c, target)]
    changes = {"lora_alpha": alpha, "lora_targets": ",".join(names)}
    return dataclasses.replace(c, lora_rank=rank, **changes)


def _named(path: Path, c: ModelConfig, target: str) -> list[str]:
    """The units whose modules are meant: by their names, or the last parts of these."""
    _, modules = TWINS[c.block]
    names = [n for n, module in modules.items() if f".{module}".endswith(f".{target}")]
    if not names:
        raise UserError(
            f"{path} is for another base: {target!r} is no module of the {c.block}"
            f" block, which has {', '.join(modules.values())}"
        )
    return names
