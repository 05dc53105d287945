"""The depth grid of a model."""

from diffeq_former.config import ModelConfig
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.weight_specs import with_step_lengths
from diffeq_former.ode.grid import Grid, on_segments, uniform
from diffeq_former.ode.solvers import get_solver


def default_grid(c: ModelConfig) -> Grid:
    """Return the model's default depth grid.

    Its steps are aligned with the segments on which W(t) is constant, if it has any;
    otherwise it is uniform.
    """
    nodes = get_solver(c.solver).nodes
    if c.segments:
        return on_segments(c.num_layers, c.segments, len(nodes))
    return uniform(c.num_layers, nodes)


def with_equal_steps(c: ModelConfig, table: dict) -> dict:
    """Return the weights that give the same model in steps of equal length.

    Where the lengths of the default grid differ, the weights absorb them.

    Args:
      c: The model's config.
      table: The weights at the steps of its default grid, with a leading axis of steps.
    """
    lengths_T = default_grid(c).lengths_T
    if lengths_T is None:
        return table
    specs = BLOCKS[c.block].weight_specs(c)
    return with_step_lengths(specs, table, c.num_layers * lengths_T)
