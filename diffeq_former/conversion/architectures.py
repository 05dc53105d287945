"""The supported families of Hugging Face models."""

import dataclasses
from collections.abc import Mapping

from diffeq_former import config as configs
from diffeq_former.config import Config, ModelConfig, Stabilisers
from diffeq_former.conversion.architecture import Architecture
from diffeq_former.conversion.diffeq_former_hf import OWN
from diffeq_former.conversion.gpt2 import GPT2
from diffeq_former.conversion.gpt_neox import GPT_NEOX
from diffeq_former.conversion.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from diffeq_former.conversion.parallel_llama import COHERE2_MOE
from diffeq_former.errors import UserError
from diffeq_former.finetuning.peft import own_settings
from diffeq_former.ode.solvers import get_solver

_KNOWN = (GPT2, GPT_NEOX, LLAMA, MISTRAL, QWEN2, QWEN3, COHERE2_MOE, OWN)
ARCHITECTURES = {a.model_type: a for a in _KNOWN}


def of_model(c: ModelConfig) -> Architecture:
    """Return the family that a layer_table is exported to.

    It is `OWN` only if transformers itself cannot compute the model.

    Raises:
      UserError: If the model has stabilisers, or a solver with several evaluations of
        the field in a step, which no family supports.
    """
    if len(get_solver(c.solver).nodes) > 1:
        raise UserError(
            f"a model with model.solver {c.solver} has no Hugging Face equivalent;"
            " export a run with euler, lie_trotter or strang"
        )
    if c.stabilisers != Stabilisers():
        raise UserError(
            "a model with model.stabilisers.residual"
            f" {c.stabilisers.residual:g} and norm {c.stabilisers.norm} has no Hugging"
            " Face equivalent; export a run with residual 1 and norm pre"
        )
    if own_settings(c) or c.solver not in ("euler", "lie_trotter"):
        return OWN
    is_parallel, has_qkv_bias = c.solver == "euler", c.attention_bias == "qkv"
    if c.block == "gpt" and not c.learned_positions:
        return GPT_NEOX
    if c.block == "gpt":
        return OWN if is_parallel else GPT2
    if not is_parallel:
        return QWEN3 if c.qk_norm else QWEN2 if has_qkv_bias else LLAMA
    others = (c.qk_norm, has_qkv_bias, c.rope_scaling != "none")
    return OWN if any(others) else COHERE2_MOE


def of_config(given: Mapping) -> Architecture:
    """Return the family that a config.json names.

    Raises:
      UserError: If the family is not supported, or the model is not a language model.
    """
    known = ", ".join(a.class_name for a in ARCHITECTURES.values())
    kind, classes = given.get("model_type"), given.get("architectures") or []
    if kind not in ARCHITECTURES:
        raise UserError(f"model_type: expected that of {known}, got {kind!r}")
    architecture = ARCHITECTURES[kind]
    if classes and architecture.class_name not in classes:
        raise UserError(f"architectures: expected one of {known}, got {classes[0]!r}")
    return architecture


def read_model(a: Architecture, given: Mapping) -> ModelConfig:
    """Return the resolved layer_table that a config.json describes.

    Its dtype is float32 if the tensors are stored in float32, else bfloat16.

    Raises:
      UserError: If the model is not supported.
    """
    stored = given.get("dtype") or given.get("torch_dtype") or "float32"
    model = dataclasses.replace(
        a.read_config(given),
        weights="layer_table",
        dtype="float32" if stored == "float32" else "bfloat16",
    )
    return configs.resolve(dataclasses.asdict(Config(model=model))).model
