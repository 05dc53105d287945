"""Numbers of solver steps, and solvers, with which a trained model is used."""

import dataclasses

from diffeq_former.config import ModelConfig
from diffeq_former.config.model_validation import check_solver


def at_depth(
    model: ModelConfig, num_steps: int | None = None, solver: str | None = None
) -> ModelConfig:
    """Return the model with this number of steps of this solver.

    Args:
      model: The config of the model.
      num_steps: The number of steps; None: the model's own.
      solver: A name that ode/solvers.py knows; None: the model's own.

    Raises:
      UserError: If the number is out of range, there is no such solver, or the model
        cannot take its steps.
    """
    num_steps = model.num_layers if num_steps is None else num_steps
    model = model.at_depth(num_steps)
    if solver is not None:
        model = dataclasses.replace(model, solver=solver)
        check_solver(model)
    return model
