"""Measurements of a finished run of a study."""

import math
import statistics
from pathlib import Path

import jax
import jax.numpy as jnp

from diffeq_former.config import Config, MeshConfig, ModelConfig
from diffeq_former.errors import UserError
from diffeq_former.hardware import hardware_of
from diffeq_former.models.transformer import Transformer
from diffeq_former.planning.closed_form import axis_sizes, needed_memory
from diffeq_former.training import metrics_file
from diffeq_former.training.flops import flops_per_token, weights_per_token
from diffeq_former.training.run_directory import read_config

_MEDIANS = ("tokens_per_second", "host_memory_gib", "device_memory_gib")


def measured(workdir: Path) -> dict:
    """Return losses, speed, size and memory of a run.

    Returns:
      `steps` and `losses` (nats per token) of its evaluations, `perplexity` (the last),
      `parameters`, `weights_per_token`, `training_flops` (of the forward and backward
      pass, as defined in training/flops.py), `planned_memory_gib` of a step on one
      device, and, where the run has recorded them, medians of `tokens_per_second`,
      `host_memory_gib` and `device_memory_gib`.

    Raises:
      UserError: If the run was never evaluated.
    """
    config, losses = read_config(workdir), validation_losses(workdir)
    medians = {name: records(workdir, name) for name in _MEDIANS}
    return {
        "steps": list(losses),
        "losses": list(losses.values()),
        "perplexity": math.exp(list(losses.values())[-1]),
        "parameters": num_parameters(config.model),
        "weights_per_token": weights_per_token(config.model),
        "training_flops": _training_flops(config),
        "planned_memory_gib": _planned_memory(config) / 2**30,
    } | {name: statistics.median(x.values()) for name, x in medians.items() if x}


def records(workdir: Path, name: str) -> dict[int, float]:
    """Return the values of a metric by step; for repeated steps the last value."""
    lines = metrics_file.read(workdir)
    return {line["step"]: line[name] for line in lines if name in line}


def validation_losses(workdir: Path) -> dict[int, float]:
    """Return the validation losses by step.

    Raises:
      UserError: If the run was never evaluated.
    """
    found = records(workdir, "validation/loss")
    if not found:
        raise UserError(
            f"{workdir} was never evaluated: set training.eval_every to 1 or more"
        )
    return found


def num_parameters(model: ModelConfig) -> int:
    """Return the number of parameters that a model stores."""
    tokens_BL = jnp.zeros((1, 1), jnp.int32)
    shapes = jax.eval_shape(Transformer(model).init, jax.random.key(0), tokens_BL)
    return sum(math.prod(x.shape) for x in jax.tree.leaves(shapes["params"]))


def _training_flops(config: Config) -> float:
    c, seq_len = config.training, config.model.max_len
    tokens = c.num_steps * c.batch_size * seq_len
    return tokens * flops_per_token(config.model, seq_len)


def _planned_memory(config: Config) -> float:
    sizes, seq_len = axis_sizes(MeshConfig(), num_devices=1), config.model.max_len
    return needed_memory(config, sizes, hardware_of(jax.devices()[0]), seq_len).total
