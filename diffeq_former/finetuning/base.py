"""The run that a fine-tuning starts from: it decides on the model and its weights."""

import dataclasses
from pathlib import Path

import jax
from jax.sharding import Mesh

from diffeq_former import config as configs
from diffeq_former.config import Config, ModelConfig
from diffeq_former.data.dataset import Dataset
from diffeq_former.distributed.mesh import on_mesh
from diffeq_former.errors import UserError
from diffeq_former.finetuning.discretise import discrete_model, discrete_params
from diffeq_former.finetuning.merge import check_is_merged
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.lora import linear_names, unknown_targets
from diffeq_former.training import run_directory, state, trainable
from diffeq_former.training.state import TrainState

# What a run may choose for itself: how the model is trained and computed.
_FREE = {
    *("dtype", "remat", "generate_weights", "attention_implementation"),
    *("dropout", "attention_dropout", "document_masking", "end_of_text"),
    *("lora_rank", "lora_alpha", "lora_dropout", "lora_targets"),
}


def complete(config: Config, workdir: Path, dataset: Dataset) -> Config:
    """The config with what its base decides filled in: `config.finetune.base` is set.

    Where the folder's run has begun, that run says what the base decided.

    Raises:
      UserError: if there is no such base, it cannot be cut as is asked for or does not
        fit the dataset, or settings contradict it.
    """
    base = Path(config.finetune.base).absolute()
    finetune = dataclasses.replace(config.finetune, base=str(base))
    config = dataclasses.replace(config, finetune=finetune)
    if base == workdir.absolute():
        raise UserError(f"--workdir: {workdir} is the base itself; use another folder")
    begun = _begun(workdir)
    if begun and begun.finetune == finetune:
        decided = begun.model
    else:
        decided = _decided_by(base, config, dataset)
    model = _joined(config.model, decided, base)
    validate_adapters(model)
    return configs.resolve(dataclasses.asdict(dataclasses.replace(config, model=model)))


def validate_adapters(c: ModelConfig) -> None:
    """Check a resolved model that may have adapters.

    Raises:
      UserError: for adapters of another source than a layer_table, or of a map that the
        block does not have.
    """
    if not c.lora_rank:
        return
    if c.weights != "layer_table":
        raise UserError(
            "config.model.lora_rank: adapters belong to the layers of a layer_table,"
            f" got model.weights {c.weights}; use finetune.base, which cuts a run into"
            " layers, or 0"
        )
    units = BLOCKS[c.block].units(c)
    if unknown := unknown_targets(c, units):
        raise UserError(
            f"config.model.lora_targets: {unknown[0]!r} is no linear map of the"
            f" {c.block} block, which has {', '.join(linear_names(units))}"
        )


def first_state(config: Config, mesh: Mesh) -> TrainState:
    """The state before the first step: the base's latest checkpoint, cut into layers.

    Adapters are drawn from the seed.

    Raises:
      UserError: if the base has no checkpoint that can be loaded.
    """
    run = run_directory.load(Path(config.finetune.base), mesh)
    own, c = run.config.model, config.model
    plain = dataclasses.replace(config, model=c.without_adapters())
    params = run.params
    if own.weights != c.weights:
        cut = jax.jit(
            lambda params: discrete_params(own, params, c.num_layers),
            out_shardings=state.shardings(plain, mesh).params,
        )
        params = on_mesh(mesh, cut)(params)
    if c.lora_rank:
        params = trainable.join(params, _adapters(config, mesh))
    return state.with_params(config, mesh, params)


def _begun(workdir: Path) -> Config | None:
    exists = (workdir / run_directory.CONFIG).exists()
    return run_directory.read_config(workdir) if exists else None


def _decided_by(base: Path, config: Config, dataset: Dataset) -> ModelConfig:
    """The base's model, cut into layers if that is asked for."""
    own = run_directory.read_config(base).model
    _check_tokens(base, own, dataset)
    check_is_merged(own, base)
    if not BLOCKS[own.block].learned_positions:
        longer = max(own.max_len, dataset.seq_len)
        own = dataclasses.replace(own, max_len=longer)
    num_steps = config.finetune.num_steps
    if own.weights == "layer_table":
        if num_steps not in (0, own.num_layers):
            raise UserError(
                f"config.finetune.num_steps: {base} is a layer_table of"
                f" {own.num_layers} layers, with no weights between them; use 0, or a"
                f" base with other model.weights, got {num_steps}"
            )
        return own
    if not num_steps and not config.model.lora_rank:
        return own
    return discrete_model(own, num_steps or own.num_layers)


def _check_tokens(base: Path, own: ModelConfig, dataset: Dataset) -> None:
    if run_directory.tokenizer_fingerprint(base) != dataset.tokenizer_fingerprint:
        raise UserError(
            f"dataset {dataset.path} has another tokenizer than the base {base}:"
            " prepare it with the base's"
        )
    if BLOCKS[own.block].learned_positions and dataset.seq_len > own.max_len:
        raise UserError(
            f"dataset {dataset.path} has sequences of {dataset.seq_len} tokens, longer"
            f" than the {own.max_len} that the base {base} has positions for: prepare"
            f" it with --seq_len={own.max_len} or less"
        )


def _joined(given: ModelConfig, decided: ModelConfig, base: Path) -> ModelConfig:
    """What the base decides, and what is given of the rest."""
    for field in dataclasses.fields(ModelConfig):
        value, wanted = getattr(given, field.name), getattr(decided, field.name)
        if field.name not in _FREE and value not in (field.default, wanted):
            raise UserError(
                f"config.model.{field.name}: {value!r} is not what the base {base} has"
                f" ({wanted!r}): leave it out, the base decides"
            )
    return dataclasses.replace(
        decided, **{name: getattr(given, name) for name in _FREE}
    )


def _adapters(config: Config, mesh: Mesh) -> dict:
    """The first parameters of adapters alone."""
    only = dataclasses.replace(config.finetune, train_embeddings=False)
    config = dataclasses.replace(config, finetune=only)

    def of_adapters(params: dict) -> dict:
        return trainable.split(config, params)[0]

    draw = jax.jit(
        lambda: of_adapters(state.first_params(config)),
        out_shardings=of_adapters(state.shardings(config, mesh).params),
    )
    return draw()
