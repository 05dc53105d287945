"""Discretisation of a model: its weights on a grid become a layer_table."""

import dataclasses
from pathlib import Path

import jax
from jax.sharding import Mesh

from diffeq_former.atomic_io import atomic_directory
from diffeq_former.config import Config, ModelConfig
from diffeq_former.distributed.mesh import on_mesh
from diffeq_former.errors import UserError
from diffeq_former.finetuning import write_run
from diffeq_former.finetuning.merge import check_is_merged
from diffeq_former.models.grid import with_equal_steps
from diffeq_former.models.remat import WITHOUT_WEIGHTS
from diffeq_former.models.transformer import Transformer
from diffeq_former.ode.solvers import SOLVERS
from diffeq_former.training import run_directory, state


def discrete_model(c: ModelConfig, num_steps: int) -> ModelConfig:
    """Return the layer_table that computes a model in `num_steps` steps.

    The horizon stays, so each layer keeps the step size horizon / num_steps.

    Raises:
      UserError: If the number of steps is invalid, or the model's solver needs weights
        at several times per step.
    """
    if num_steps < 1:
        raise UserError(f"num_steps: expected 1 or more, got {num_steps}")
    if c.weights == "layer_table" and num_steps == c.num_layers == c.segments:
        return c
    if len(SOLVERS[c.solver].nodes) > 1 and not c.segments:
        raise UserError(
            f"this model's solver is {c.solver}, whose steps need weights at several"
            " times, but a layer has those of one; use a run with euler, lie_trotter or"
            " strang"
        )
    return dataclasses.replace(
        c.at_depth(num_steps),
        weights="layer_table",
        time_segments=0,
        generate_weights="tabulated",
        remat=WITHOUT_WEIGHTS.get(c.remat, c.remat),
    )


def discrete_params(c: ModelConfig, params: dict, num_steps: int) -> dict:
    """Return the parameters of `discrete_model` from those of the model."""
    exact = dataclasses.replace(
        c.at_depth(num_steps), generate_weights="tabulated", dtype="float32"
    )
    table = Transformer(exact).apply({"params": params}, method="tabulate")
    # The layers of a layer_table have one step size.
    weights = with_equal_steps(exact, jax.tree.map(lambda w: w[:, 0], table))
    return params | {"weights": weights}


def discretise_run(workdir: Path, num_steps: int, output: Path, mesh: Mesh) -> Config:
    """Discretise the latest checkpoint of a run and write it as a new run at step 0.

    The new run can be evaluated, used and trained like any other; its optimizer state
    is fresh.

    Args:
      workdir: The folder of the run.
      num_steps: Number of solver steps, each of which becomes a layer.
      output: The folder of the new run, which must not exist; written atomically.
      mesh: Mesh on which the arrays are computed.

    Returns:
      The config of the new run.

    Raises:
      UserError: If the run cannot be read or discretised or has adapters, or `output`
        exists.
    """
    source = run_directory.read_config(workdir)
    check_is_merged(source.model, workdir)
    config = dataclasses.replace(
        write_run.without_finetuning(source),
        model=discrete_model(source.model, num_steps),
        training=dataclasses.replace(
            source.training, depth_steps=(), depth_steps_from=0.0
        ),
    )
    with atomic_directory(output) as folder:
        run = run_directory.load(workdir, mesh)
        discretise = jax.jit(
            lambda params: discrete_params(source.model, params, num_steps),
            out_shardings=state.shardings(config, mesh).params,
        )
        params = on_mesh(mesh, discretise)(run.params)
        write_run.write(folder, config, params, workdir, mesh)
    return config
