"""The families of Hugging Face models that ours become, and come from."""

import dataclasses
from collections.abc import Mapping

from diffeq_former import config as configs
from diffeq_former.config import Config, ModelConfig, Stabilisers
from diffeq_former.conversion.architecture import Architecture
from diffeq_former.conversion.diffeq_former_hf import OWN
from diffeq_former.conversion.gpt2 import GPT2
from diffeq_former.conversion.llama import LLAMA
from diffeq_former.errors import UserError

ARCHITECTURES = {a.model_type: a for a in (GPT2, LLAMA, OWN)}
_TWINS = {"gpt": GPT2, "llama": LLAMA}


def of_model(c: ModelConfig) -> Architecture:
    """The twin of a layer_table in transformers, or, where there is none, our own.

    Raises:
      UserError: if it is stabilised in a way that neither knows.
    """
    if c.stabilisers != Stabilisers():
        raise UserError(
            "a model with model.stabilisers.residual"
            f" {c.stabilisers.residual:g} and norm {c.stabilisers.norm} has no Hugging"
            " Face form: those have residual 1 and norm pre; use such a run"
        )
    has_twin = c.solver == "lie_trotter" and not c.chain_norms
    return _TWINS[c.block] if has_twin else OWN


def of_config(given: Mapping) -> Architecture:
    """The family that a config.json names.

    Raises:
      UserError: if it is another one, or not a language model.
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
    """The layer_table of a config.json, checked; it computes in the type it names.

    Raises:
      UserError: for what our model has not.
    """
    stored = given.get("dtype") or given.get("torch_dtype") or "float32"
    model = dataclasses.replace(
        a.read_config(given),
        weights="layer_table",
        dtype="float32" if stored == "float32" else "bfloat16",
    )
    if a is not OWN:
        model = dataclasses.replace(model, solver="lie_trotter")
    return configs.resolve(dataclasses.asdict(Config(model=model))).model
