"""Writing of converted parameters as a new run at step 0."""

import contextlib
import dataclasses
from pathlib import Path

from jax.sharding import Mesh

from diffeq_former.config import Config, FinetuneConfig
from diffeq_former.training import run_directory, state
from diffeq_former.training.checkpoint import Checkpoints


def without_finetuning(config: Config) -> Config:
    """Return the config without the settings of fine-tuning, such as the base run."""
    return dataclasses.replace(config, finetune=FinetuneConfig())


def write(folder: Path, config: Config, params: dict, other: Path, mesh: Mesh) -> None:
    """Write a run to an empty folder, with the tokenizer and data of another run.

    Args:
      folder: The folder of the new run.
      config: The config of the new run.
      params: The parameters of its model, on the mesh.
      other: The folder of the other run.
      mesh: The mesh of the parameters.
    """
    run_directory.write_like(folder, config, other)
    checkpoints = Checkpoints(folder / run_directory.CHECKPOINTS, 1, 0)
    with contextlib.closing(checkpoints):
        checkpoints.save(0, state.with_params(config, mesh, params))
