"""PEFT's adapter_config.json, and the names of the layers in Hugging Face models."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from diffeq_former.config import ModelConfig, Stabilisers
from diffeq_former.errors import UserError
from diffeq_former.json_io import read_object
from diffeq_former.models.blocks import linear_specs
from diffeq_former.models.lora import is_adapted
from diffeq_former.models.weight_specs import LinearSpec

SETTINGS = "adapter_config.json"

# Other settings of PEFT, each with the only value that is supported.
_PLAIN = {"peft_type": "LORA", "bias": "none", "use_rslora": False, "use_dora": False}

# For each block: the module that holds the layers, and our names of linear layers ->
# modules within a layer.
HF_MODULES = {
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


def own_settings(c: ModelConfig) -> list[str]:
    """Return the model fields in use that no model of transformers has.

    Those for a llama are Llama, Qwen 2 and Qwen 3; for a gpt, GPT-2 and GPT-NeoX.
    """
    own = [name for name in ("chain_norms", "logit_softcap") if getattr(c, name)]
    if c.block == "llama" and c.rope_fraction != 1:
        own.append("rope_fraction")
    if c.qk_norm and (c.block == "gpt" or c.attention_bias == "qkv"):
        own.append("qk_norm")
    if c.block == "gpt" and c.num_heads * c.head_size != c.d_model:
        own.append("head_dim")
    return own + ["backward=reversible"] * (c.backward == "reversible")


def check_has_hf_equivalent(c: ModelConfig) -> None:
    """Raise UserError unless the model is a GPT-2, Llama, Qwen 2 or Qwen 3."""
    plain = c.weights == "layer_table" and c.solver == "lie_trotter"
    stabilised, own = c.stabilisers == Stabilisers(), own_settings(c)
    if c.block == "gpt" and not c.learned_positions:
        own.append("positions=rotary")  # GPT-NeoX has other modules than HF_MODULES
    if not plain or own or not stabilised:
        what = f"of {c.weights} and {c.solver}"
        if plain:
            what = f"with {own[0]}" if stabilised else f"with {c.stabilisers}"
        raise UserError(
            f"a model {what} has no Hugging Face equivalent that adapters in PEFT's"
            " format are written for: use a layer_table with lie_trotter, or merge the"
            " run with tools/convert.py merge_lora --workdir=... --output=..."
        )


def adapted_layers(c: ModelConfig) -> Iterator[tuple[str, str, LinearSpec, float]]:
    """Yield (name, PEFT's module, layer spec, factor of B) for each adapted layer.

    The factor is the step size for layers that write to the residual stream, else 1.
    """
    _, modules = HF_MODULES[c.block]
    for name, spec in linear_specs(c).items():
        if is_adapted(c, name):
            factor = c.step_size if spec.writes_residual else 1.0
            yield name, modules[name], spec, factor


def settings(c: ModelConfig) -> dict:
    """Return the contents of adapter_config.json."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": c.lora_rank,
        "lora_alpha": c.lora_alpha,
        "lora_dropout": c.lora_dropout,
        "target_modules": [module for _, module, _, _ in adapted_layers(c)],
        "fan_in_fan_out": c.block == "gpt",  # GPT-2 stores its matrices transposed
        "bias": "none",
    }


def read_settings(folder: Path, c: ModelConfig) -> ModelConfig:
    """Return the model with the adapter that a folder's adapter_config.json describes.

    Raises:
      UserError: If the file cannot be read, does not describe plain LoRA, or names
        modules that the model does not have.
    """
    path = folder / SETTINGS
    read = read_object(path)
    try:
        rank, alpha = int(read["r"]), float(read["lora_alpha"])
        targets = [str(target) for target in read["target_modules"]]
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise UserError(f"{path} is damaged: {error!r}") from error
    for key, value in _PLAIN.items():
        if read.get(key, value) != value:
            raise UserError(f"{path}: {key} is {read[key]!r}, expected {value!r}")
    if rank < 1:
        raise UserError(f"{path}: r: expected 1 or more, got {rank}")
    names = [name for target in targets for name in _named(path, c, target)]
    changes = {"lora_alpha": alpha, "lora_targets": tuple(names)}
    return dataclasses.replace(c, lora_rank=rank, **changes)


def _named(path: Path, c: ModelConfig, target: str) -> list[str]:
    """Return the layers whose module is the target, or ends with it as PEFT allows."""
    _, modules = HF_MODULES[c.block]
    names = [n for n, module in modules.items() if f".{module}".endswith(f".{target}")]
    if not names:
        raise UserError(
            f"{path} is for another base: {target!r} is not a module of the {c.block}"
            f" block, which has {', '.join(modules.values())}"
        )
    return names
