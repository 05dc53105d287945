"""Writes parameters as a run at its step 0, which goes on like any other."""

import contextlib
import dataclasses
from pathlib import Path

from jax.sharding import Mesh

from diffeq_former.config import Config, FinetuneConfig
from diffeq_former.training import run_directory, state
from diffeq_former.training.checkpoint import Checkpoints


def of_its_own(config: Config) -> Config:
    """The config of a run that no longer knows what it started from."""
    return dataclasses.replace(config, finetune=FinetuneConfig())


def write(folder: Path, config: Config, params: dict, other: Path, mesh: Mesh) -> None:
    """Into an empty folder, with another run's tokenizer and data.

    Args:
      folder: of the new run.
      config: of the new run.
      params: of its model, on the mesh.
      other: folder of the other run.
      mesh: where arrays lie meanwhile.
    """
    run_directory.write_twin(folder, config, other)
    checkpoints = Checkpoints(folder / run_directory.CHECKPOINTS, 1, 0)
    with contextlib.closing(checkpoints):
        checkpoints.save(0, state.with_params(config, mesh, params))
