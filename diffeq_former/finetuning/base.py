"""The base run of a fine-tuning, which determines the model and its first weights."""

import dataclasses
from collections.abc import Collection
from pathlib import Path

import jax
from jax.sharding import Mesh

from diffeq_former.config import Config, ModelConfig
from diffeq_former.config.validation import validate
from diffeq_former.data.mixture import Data
from diffeq_former.distributed.mesh import on_mesh
from diffeq_former.errors import UserError
from diffeq_former.finetuning.discretise import discrete_model, discrete_params
from diffeq_former.finetuning.merge import check_is_merged
from diffeq_former.models.blocks import linear_specs
from diffeq_former.training import run_directory, state
from diffeq_former.training.parts import merge, partition
from diffeq_former.training.state import TrainState

# Not inherited, as the learning rates of a config are for one parametrization.
_OWN = "parametrization"
# Model fields that a fine-tuning may set: how the model is trained and computed.
_FREE = {
    *("dtype", "remat", "generate_weights", "attention_implementation"),
    *("dropout", "attention_dropout", "document_masking", "end_of_text"),
    _OWN,
    *("lora_rank", "lora_alpha", "lora_dropout", "lora_targets"),
}


def complete(
    config: Config,
    workdir: Path,
    dataset: Data,
    overrides: Collection[str] = (),
) -> Config:
    """Fill in the fields that the base run `config.finetune.base` determines.

    If the run in `workdir` has already started from this base, they are taken from the
    config of that run.

    Args:
      config: The config. A field of the model that has its default is inherited.
      workdir: The folder of the run.
      dataset: The text to tune on.
      overrides: Names of fields, such as model.dtype, whose value holds even if it is
        the default.

    Raises:
      UserError: If there is no such base run, it cannot be discretised as requested or
        does not fit the dataset, or other fields of the config contradict it.
    """
    base = Path(config.finetune.base).absolute()
    finetune = dataclasses.replace(config.finetune, base=str(base))
    config = dataclasses.replace(config, finetune=finetune)
    if base == workdir.absolute():
        raise UserError(f"--workdir: {workdir} is the base itself; use another folder")
    started = _started_run(workdir)
    if started and started.finetune == finetune:
        base_model = started.model
    else:
        base_model = _base_model(base, config, dataset)
    model = _merge_fields(config.model, base_model, base, overrides)
    validate_adapters(model)
    config = dataclasses.replace(config, model=model)
    validate(config)
    return config


def validate_adapters(c: ModelConfig) -> None:
    """Check the adapters of a resolved model config, if it has any.

    Raises:
      UserError: If the model with adapters is not a layer_table, or a target is not a
        linear layer of the block.
    """
    if not c.lora_rank:
        return
    if c.weights != "layer_table":
        raise UserError(
            "config.model.lora_rank: adapters belong to the layers of a layer_table,"
            f" got model.weights {c.weights}; set finetune.base, which discretises a"
            " run into layers, or use 0"
        )
    known = linear_specs(c)
    if unknown := [name for name in c.lora_targets if name not in known]:
        raise UserError(
            f"config.model.lora_targets: {unknown[0]!r} is not a linear layer of the"
            f" {c.block} block, which has {', '.join(known)}"
        )


def first_state(config: Config, mesh: Mesh) -> TrainState:
    """Return the state before the first step, from the base's latest checkpoint.

    The base is discretised if the config has a layer_table of other weights. Adapters
    are initialised from the seed.

    Raises:
      UserError: If the base has no checkpoint that can be loaded.
    """
    run = run_directory.load(Path(config.finetune.base), mesh)
    base_model, c = run.config.model, config.model
    plain = dataclasses.replace(config, model=c.without_adapters())
    params = run.params
    if (base_model.weights, base_model.num_layers) != (c.weights, c.num_layers):
        discretise = jax.jit(
            lambda params: discrete_params(base_model, params, c.num_layers),
            out_shardings=state.shardings(plain, mesh).params,
        )
        params = on_mesh(mesh, discretise)(params)
    if c.lora_rank:
        params = merge(params, _adapters(config, mesh))
    return state.with_params(config, mesh, params)


def _started_run(workdir: Path) -> Config | None:
    """Return the config of the run in the folder, if there is one."""
    exists = (workdir / run_directory.CONFIG).exists()
    return run_directory.read_config(workdir) if exists else None


def _base_model(base: Path, config: Config, dataset: Data) -> ModelConfig:
    """Return the base's model, discretised if num_steps or adapters ask for that."""
    model = run_directory.read_config(base).model
    _check_tokens(base, model, dataset)
    check_is_merged(model, base)
    if not model.learned_positions:
        max_len = max(model.max_len, dataset.seq_len)
        model = dataclasses.replace(model, max_len=max_len)
    num_steps = config.finetune.num_steps
    if not num_steps and not config.model.lora_rank:
        return model
    return discrete_model(model, num_steps or model.num_layers)


def _check_tokens(base: Path, model: ModelConfig, dataset: Data) -> None:
    """Check that tokenizer and sequence length of the dataset suit the base."""
    if run_directory.tokenizer_fingerprint(base) != dataset.tokenizer_fingerprint:
        raise UserError(
            f"dataset {dataset} has a different tokenizer than the base {base}:"
            " prepare it with the base's"
        )
    if model.learned_positions and dataset.seq_len > model.max_len:
        raise UserError(
            f"dataset {dataset} has sequences of {dataset.seq_len} tokens, longer"
            f" than the {model.max_len} that the base {base} has positions for: prepare"
            f" it with --seq_len={model.max_len} or less"
        )


def _merge_fields(
    given: ModelConfig, base_model: ModelConfig, base: Path, overrides: Collection[str]
) -> ModelConfig:
    """Return the base's model with the `_FREE` fields that are given.

    Raises:
      UserError: If another field is given that differs from the base.
    """
    changes = {}
    for field in dataclasses.fields(ModelConfig):
        name, value = field.name, getattr(given, field.name)
        expected = getattr(base_model, name)
        is_given = value != field.default or f"model.{name}" in overrides
        if value == expected or not (is_given or name == _OWN):
            continue
        if name not in _FREE:
            raise UserError(
                f"config.model.{name}: {value!r} is not what the base {base} has"
                f" ({expected!r}): leave it out, the base decides"
            )
        changes[name] = value
    if _OWN in changes:
        # On which the default length of the depth interval depends.
        changes["horizon"] = base_model.interval
    return dataclasses.replace(base_model, **changes)


def _adapters(config: Config, mesh: Mesh) -> dict:
    """Initialise the adapters' parameters from the seed."""
    # With frozen embeddings, the trainable parameters are exactly the adapters.
    finetune = dataclasses.replace(config.finetune, train_embeddings=False)
    config = dataclasses.replace(config, finetune=finetune)

    def adapters_only(params: dict) -> dict:
        return partition(config, params).rest

    initialise = jax.jit(
        lambda: adapters_only(state.first_params(config)),
        out_shardings=adapters_only(state.shardings(config, mesh).params),
    )
    return initialise()
