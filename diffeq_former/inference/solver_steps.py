"""The flag --num_steps of tools: numbers of solver steps to evaluate a model with."""

from diffeq_former.config import ModelConfig
from diffeq_former.errors import UserError


def models_with_steps(
    model: ModelConfig, num_steps: list[str] | None
) -> list[ModelConfig]:
    """Return the model with each number of solver steps in the flag --num_steps.

    Args:
      model: The config of the model.
      num_steps: The value of the flag; None: the model's own number of steps.

    Raises:
      UserError: If a value is not a positive integer, or the model is a layer_table
        with another number of layers.
    """
    if num_steps is None:
        return [model]
    if not num_steps or not all(n.isdecimal() and int(n) for n in num_steps):
        raise UserError(
            f"--num_steps={','.join(num_steps)}: expected whole numbers of 1 or more, "
            "separated by commas"
        )
    return [_at_depth(model, int(n)) for n in num_steps]


def _at_depth(model: ModelConfig, num_steps: int) -> ModelConfig:
    if model.weights == "layer_table" and num_steps != model.num_layers:
        raise UserError(
            f"--num_steps={num_steps}: this model is a layer_table, which has "
            f"weights at its {model.num_layers} layers and none between them; use "
            f"--num_steps={model.num_layers}, or a run with other model.weights"
        )
    return model.at_depth(num_steps)
