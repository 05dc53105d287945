"""Cuts a continuous model into layers: its weights on a grid become their table."""

import dataclasses
from pathlib import Path

import jax
from jax.sharding import Mesh

from diffeq_former.atomic_io import complete_or_nothing
from diffeq_former.config import Config, ModelConfig
from diffeq_former.distributed.mesh import on_mesh
from diffeq_former.errors import UserError
from diffeq_former.finetuning import write_run
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.grid import own_grid
from diffeq_former.models.remat import WITHOUT_WEIGHTS
from diffeq_former.models.transformer import Transformer
from diffeq_former.models.units import with_step_lengths
from diffeq_former.ode.solvers import SOLVERS
from diffeq_former.training import run_directory, state


def discrete_model(c: ModelConfig, num_steps: int) -> ModelConfig:
    """The layer_table that a model is in so many steps; they keep their length.

    Raises:
      UserError: if it has no such twin.
    """
    if num_steps < 1:
        raise UserError(f"num_steps: expected 1 or more, got {num_steps}")
    if c.weights == "layer_table":
        raise UserError(
            f"this model is a layer_table already, of {c.num_layers} layers, with no"
            " weights between them; use a run with other model.weights"
        )
    if len(SOLVERS[c.solver].nodes) > 1:
        raise UserError(
            f"this model's solver is {c.solver}, whose steps need weights of several"
            " times, where a layer has one; use a run with euler, lie_trotter or strang"
        )
    return dataclasses.replace(
        c.at_depth(num_steps),
        weights="layer_table",
        time_pieces=0,
        generate_weights="tabulated",
        remat=WITHOUT_WEIGHTS.get(c.remat, c.remat),
    )


def discrete_params(c: ModelConfig, params: dict, num_steps: int) -> dict:
    """The parameters of `discrete_model`, from those of the continuous one."""
    exact = dataclasses.replace(
        c.at_depth(num_steps), generate_weights="tabulated", dtype="float32"
    )
    table = Transformer(exact).apply({"params": params}, method="tabulate")
    weights = jax.tree.map(lambda w: w[:, 0], table)
    lengths_T = own_grid(exact).lengths_T
    if lengths_T is not None:  # layers are equally long
        units = BLOCKS[c.block].units(exact)
        weights = with_step_lengths(units, weights, num_steps * lengths_T)
    return params | {"weights": weights}


def discretise_run(workdir: Path, num_steps: int, output: Path, mesh: Mesh) -> Config:
    """Writes a run at its step 0 whose model is that of a run's latest checkpoint.

    It can be evaluated, used and trained like any other; the optimizer starts anew.

    Args:
      workdir: The continuous run's folder.
      num_steps: Steps over depth, which become layers.
      output: The new run's folder, which must not exist. It is complete or not there.
      mesh: Where arrays lie meanwhile.

    Returns:
      The new run's config.

    Raises:
      UserError: for a run that cannot be read or has no such twin, or the output.
    """
    own = run_directory.read_config(workdir)
    config = dataclasses.replace(
        write_run.of_its_own(own),
        model=discrete_model(own.model, num_steps),
        training=dataclasses.replace(
            own.training, depth_grid="fixed", depth_steps="", depth_steps_from=0.0
        ),
    )
    with complete_or_nothing(output) as folder:
        run = run_directory.load(workdir, mesh)
        make = jax.jit(
            lambda params: discrete_params(own.model, params, num_steps),
            out_shardings=state.shardings(config, mesh).params,
        )
        params = on_mesh(mesh, make)(run.params)
        write_run.write(folder, config, params, workdir, mesh)
    return config
