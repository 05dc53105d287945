"""On which grid of depth a model takes its steps."""

from diffeq_former.config import ModelConfig
from diffeq_former.ode.grid import Grid, on_pieces, uniform
from diffeq_former.ode.solvers import SOLVERS


def own_grid(c: ModelConfig) -> Grid:
    """Of steps of one length; with `time_pieces`, of those that keep to the pieces."""
    nodes = SOLVERS[c.solver].nodes
    if c.time_pieces:
        return on_pieces(c.num_layers, c.time_pieces, len(nodes))
    return uniform(c.num_layers, nodes)
