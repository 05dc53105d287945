"""The depth grid of a model."""

from diffeq_former.config import ModelConfig
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
