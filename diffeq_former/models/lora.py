"""LoRA (Hu et al. 2021, arXiv 2106.09685): low-rank adapters of linear maps.

y = x W + dropout(x) A B alpha / r, with W frozen, A [inputs, r] and B [r, outputs] for
each layer. B is initialised to zero, so that training starts at the base model; A is
initialised as in PEFT.
"""

import math
from collections.abc import Callable

import flax.linen as nn
import jax

from diffeq_former.config import ModelConfig
from diffeq_former.models.parameters import Axes, normal, uniform
from diffeq_former.models.units import Linear, Units

NAMES = ("lora_a", "lora_b")


def scale(c: ModelConfig) -> float:
    """Return alpha / r, the factor of the product A B."""
    return c.lora_alpha / c.lora_rank


def is_adapted(c: ModelConfig, unit: str) -> bool:
    """Return whether the linear map of this name has an adapter."""
    return c.lora_rank > 0 and (not c.lora_targets or unit in c.lora_targets)


def unknown_targets(c: ModelConfig, units: Units) -> list[str]:
    """Return the targets that are not linear maps of the block."""
    return [name for name in c.lora_targets if name not in linear_names(units)]


def linear_names(units: Units) -> list[str]:
    """Return the names of the block's linear maps."""
    return [name for name, unit in units.items() if isinstance(unit, Linear)]


def adapter(
    module: nn.Module, rank: int, unit: Linear, leading: tuple[int, ...], axes: Axes
) -> dict[str, jax.Array]:
    """Create the parameters of a linear map's adapter.

    Args:
      module: The module that owns the parameters.
      rank: The adapter's rank r.
      unit: The linear map.
      leading: Sizes of leading axes, such as layers.
      axes: Logical names of the leading axes.
    """
    bound = math.prod(unit.input_shape) ** -0.5
    a, b = (*leading, *unit.input_shape, rank), (*leading, rank, *unit.bias_shape)
    a_axes, b_axes = (*unit.input_axes, "lora"), ("lora", *unit.bias_axes)
    return {
        "lora_a": uniform(module, "lora_a", bound, a, (*axes, *a_axes)),
        "lora_b": normal(module, "lora_b", 0.0, b, (*axes, *b_axes)),
    }


def with_dropout(weights: dict, dropout: Callable[[jax.Array], jax.Array]) -> dict:
    """Return a block's weights with dropout on the inputs of each adapter."""
    return {
        name: unit | ({"lora_dropout": dropout} if "lora_a" in unit else {})
        for name, unit in weights.items()
    }
