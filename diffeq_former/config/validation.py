"""Validation of a complete configuration."""

import dataclasses
from pathlib import Path

from diffeq_former.config.dataclass_config import check_values
from diffeq_former.config.model_schema import ModelConfig
from diffeq_former.config.model_validation import validate_model
from diffeq_former.config.schema import (
    Config,
    DataConfig,
    FinetuneConfig,
    MeshConfig,
    OptimizerConfig,
    ProfileConfig,
    TrainingConfig,
)
from diffeq_former.errors import UserError, require


def validate(config: Config) -> None:
    """Raise UserError if settings are out of range or do not fit together."""
    check_values(config)
    validate_model(config.model)
    _validate_data(config.data)
    _validate_optimizer(config.optimizer)
    _validate_directions(config)
    _validate_training(config.training)
    _validate_depth(config)
    _validate_smoothness(config)
    _validate_mesh(config.mesh)
    _validate_profile(config.profile, config.training.num_steps)
    if config.tracking.backends and not config.tracking.project:
        raise UserError("config.tracking.project: expected a name, got ''")
    if config.harness.every and not config.harness.tasks:
        raise UserError(
            "config.harness.tasks: expected names of tasks, as harness.every is set;"
            " lm_eval ls tasks lists all"
        )
    _validate_finetune(config.finetune, config.model)


def _validate_data(c: DataConfig) -> None:
    if c.mixture and c.path:
        raise UserError(
            f"config.data.mixture: config.data.path ({c.path}) is set as well; leave"
            " one of them empty"
        )
    one_each = f"{len(c.mixture)}, one for each folder of data.mixture"
    found = f"{len(c.weights)}: {c.weights}"
    if len(c.weights) != len(c.mixture):
        raise UserError(f"config.data.weights: expected {one_each}, got {found}")
    names = [Path(folder).absolute().name for folder in c.mixture]
    if same := {name for name in names if names.count(name) > 1}:
        raise UserError(
            f"config.data.mixture: two folders are called {min(same)!r}, and metrics"
            " name datasets by their folders; rename one"
        )


# Largest b2 with a bfloat16 second moment: bfloat16 has a precision of 8 bits, so that
# a decay from x to 0.998 x would be rounded away.
COARSEST_B2 = 0.99


def _validate_optimizer(c: OptimizerConfig) -> None:
    require(
        c.schedule != "wsd" or c.warmup_fraction + c.decay_fraction <= 1,
        "optimizer.decay_fraction",
        f"at most 1 - warmup_fraction ({c.warmup_fraction}) with wsd",
        c.decay_fraction,
    )
    require(
        c.nu_dtype == "float32" or c.b2 <= COARSEST_B2,
        "optimizer.nu_dtype",
        f"float32 with b2 above {COARSEST_B2} (in bfloat16 a decay of 1 - b2 ="
        f" {1 - c.b2:.2g} is rounded away)",
        c.nu_dtype,
    )


def _validate_directions(config: Config) -> None:
    name = config.optimizer.name
    if name != "adamw" and config.optimizer.factored_bank:
        raise UserError(
            f"config.optimizer.factored_bank: {name} has no second moment of the bank;"
            " use False, or optimizer.name=adamw"
        )
    if config.optimizer.layer_coupling and config.model.weights != "layer_table":
        raise UserError(
            "config.optimizer.layer_coupling: only layers that have weights of their"
            " own are coupled by the optimizer; use 0, or model.weights=layer_table"
        )
    if name != "weight_space_muon" or config.model.weights != "hypernetwork":
        return
    if config.model.generate_weights != "tabulated":
        raise UserError(
            f"config.optimizer.name: {name} needs the gradients of the generated"
            " kernels; use muon, or model.generate_weights=tabulated"
        )


def _validate_training(c: TrainingConfig) -> None:
    require(
        c.spike_factor == 0 or c.spike_factor > 1,
        "training.spike_factor",
        "0 (no spike detection), or above 1",
        c.spike_factor,
    )


def _validate_depth(config: Config) -> None:
    given, start = config.training.depth_steps, config.training.depth_steps_from
    if not given:
        nothing = "0 without training.depth_steps"
        require(start == 0, "training.depth_steps_from", nothing, start)


def _validate_smoothness(config: Config) -> None:
    if not (weight := config.training.smoothness):
        return
    if config.model.generate_weights == "per_step":
        raise UserError(
            f"config.training.smoothness: {weight} penalises changes within the weight"
            " table, which per_step does not build; use 0, or"
            " model.generate_weights=tabulated"
        )
    if config.model.lora_rank:
        raise UserError(
            f"config.training.smoothness: {weight} would change the kernels, which are"
            " frozen with adapters; use 0, or model.lora_rank=0"
        )


def _validate_mesh(c: MeshConfig) -> None:
    sizes = dataclasses.asdict(c)
    for axis, size in sizes.items():
        require(size != 0, f"mesh.{axis}", "-1, or 1 or more", size)
    left = [axis for axis, size in sizes.items() if size == -1]
    if len(left) > 1:
        raise UserError(
            f"config.mesh.{left[1]}: only one axis may be -1, and {left[0]} already is"
        )


def _validate_profile(c: ProfileConfig, num_steps: int) -> None:
    most = f"0 (no profile) to training.num_steps ({num_steps})"
    require(0 <= c.num_steps <= num_steps, "profile.num_steps", most, c.num_steps)
    latest = num_steps - c.num_steps + 1
    require(
        c.num_steps == 0 or 1 <= c.start_step <= latest,
        "profile.start_step",
        f"1 to {latest}, so that {c.num_steps} steps end by training.num_steps"
        f" ({num_steps})",
        c.start_step,
    )


def _validate_finetune(c: FinetuneConfig, model: ModelConfig) -> None:
    if c.base:  # it determines the model, which finetuning/base.py validates
        if c.train_embeddings and not model.lora_rank:
            raise UserError(
                "config.finetune.train_embeddings: without adapters all parameters"
                " are trained; set it to False, or set model.lora_rank"
            )
        return
    for name, value in (
        ("finetune.num_steps", c.num_steps),
        ("finetune.train_embeddings", c.train_embeddings),
        ("model.lora_rank", model.lora_rank),
    ):
        if value:
            raise UserError(
                f"config.{name}: {value} applies only to fine-tuning; set"
                " config.finetune.base to the run to start from"
            )
