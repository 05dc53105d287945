"""Steps over depth that adapt to prompts, and are then kept for their continuations.

Keys and values are cached at the times of the grid, so that all tokens of a batch need
the same one. B sequences, L tokens.
"""

from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from diffeq_former.config import ModelConfig
from diffeq_former.distributed.mesh import mesh_hardware, num_batch_shards, on_mesh
from diffeq_former.errors import UserError
from diffeq_former.inference import buckets
from diffeq_former.models.transformer import Transformer
from diffeq_former.ode.adaptive import AdaptiveSolver, Solution
from diffeq_former.ode.grid import Grid, on_points
from diffeq_former.ode.solvers import get_solver


class AdaptedModel(NamedTuple):
    """A model with the steps that it takes."""

    config: ModelConfig  # whose num_layers is the number of steps
    grid: Grid
    num_evaluations: int  # of the vector field, to find the steps


def adaptive_solver(model: ModelConfig, rtol: float) -> AdaptiveSolver:
    """Return the model's solver with steps that adapt to a tolerance.

    Raises:
      UserError: If the solver has no estimate of its error, or the tolerance is out of
        range.
    """
    return AdaptiveSolver(model.solver, rtol, 1 / model.num_layers)


def adapt(
    model: ModelConfig, params: dict, contexts: list[list[int]], mesh: Mesh, rtol: float
) -> AdaptedModel:
    """Choose steps by the errors of the model's solver, on given sequences.

    Args:
      model: The config of the model.
      params: Its parameters.
      contexts: The token ids of each sequence, at least one.
      mesh: The mesh of the parameters.
      rtol: The tolerance, see `AdaptiveSolver`.

    Raises:
      UserError: If the solver has no estimate of its error, the tolerance is out of
        range or needs too many steps, or a sequence is longer than the model's
        `max_len`.
    """
    solver, longest = adaptive_solver(model, rtol), max(map(len, contexts))
    if longest > model.max_len:
        raise UserError(
            f"rtol={rtol:g}: steps cannot adapt to {longest} tokens, as the model's"
            f" max_len is {model.max_len}; shorten the text"
        )
    module = Transformer(model.for_inference(), hardware=mesh_hardware(mesh))
    B = buckets.batch_size(len(contexts), num_batch_shards(mesh))
    L = buckets.cache(longest, model.max_len)
    tokens_BL, counts_BL1 = np.zeros((B, L), np.int32), np.zeros((B, L, 1), bool)
    for i, context in enumerate(contexts):
        tokens_BL[i, : len(context)] = context
        counts_BL1[i, : len(context)] = True

    def find(params: dict, tokens_BL, counts_BL1):
        solution = integrate(module, params, tokens_BL, solver, counts_BL1)
        return solution.points, solution.num_evaluations

    found = on_mesh(mesh, jax.jit(find))(params, tokens_BL, counts_BL1)
    points, num_evaluations = jax.device_get(found)
    points = points[np.isfinite(points)].astype(np.float64)
    solver.check(reached_end=points[-1] == 1)
    nodes = get_solver(model.solver).nodes
    grid = on_points(np.concatenate([[0.0], points]), nodes, model.segments)
    return AdaptedModel(model.at_depth(len(points)), grid, int(num_evaluations))


def integrate(
    model: Transformer,
    params: dict,
    tokens_BL: jax.Array,
    solver: AdaptiveSolver,
    counts_BL1: jax.Array | None = None,
) -> Solution:
    """Return the states [B, L, D] at the end of depth, with adaptive steps.

    Args:
      model: The module.
      params: Its parameters.
      tokens_BL: Token ids.
      solver: The solver.
      counts_BL1: Whether a token counts for the error; None: all do.
    """
    bound = {"params": params}

    def field(t: jax.Array, x_BLD: jax.Array) -> jax.Array:
        return model.apply(bound, t, x_BLD, tokens_BL=tokens_BL, method="field")

    x_BLD = model.apply(bound, tokens_BL, method="embed")
    return solver.solve(field, x_BLD, counts_BL1)
