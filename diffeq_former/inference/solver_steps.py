"""Numbers of solver steps to evaluate a model with, as --num_steps asks for them."""

from collections.abc import Iterable

from diffeq_former.config import ModelConfig
from diffeq_former.config.ranges import check_solver_steps
from diffeq_former.errors import UserError


def models_with_steps(
    model: ModelConfig, num_steps: Iterable[int] | None
) -> list[ModelConfig]:
    """Return the model with each of these numbers of solver steps.

    Args:
      model: The config of the model.
      num_steps: Numbers of 1 or more; None: the model's own.

    Raises:
      UserError: If the model is a layer_table with another number of layers.
    """
    if num_steps is None:
        return [model]
    return [with_num_steps(model, n) for n in num_steps]


def with_num_steps(model: ModelConfig, num_steps: int) -> ModelConfig:
    """Return the model with this number of solver steps.

    Raises:
      UserError: If it is out of range, or the model is a layer_table of another depth.
    """
    check_solver_steps(num_steps)
    if model.weights == "layer_table" and num_steps != model.num_layers:
        raise UserError(
            f"num_steps={num_steps}: this model is a layer_table, which has "
            f"weights at its {model.num_layers} layers and none between them; use "
            f"num_steps={model.num_layers}, or a run with other model.weights"
        )
    return model.at_depth(num_steps)
