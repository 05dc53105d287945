"""LoRA (Hu et al. 2021, arXiv 2106.09685): a linear map plus one of low rank.

y = x W + dropout(x) A B alpha / r, with W frozen, A [inputs, r] and B [r, outputs] for
each layer. B starts at zero, so that the start is the base; A is drawn as by PEFT.
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
    """What the product A B is times."""
    return c.lora_alpha / c.lora_rank


def is_adapted(c: ModelConfig, unit: str) -> bool:
    """Whether the linear map of that name has an adapter."""
    return c.lora_rank > 0 and (not c.lora_targets or unit in _named(c))


def unknown_targets(c: ModelConfig, units: Units) -> list[str]:
    """Targets that are no linear map of the block."""
    return [name for name in _named(c) if name not in linear_names(units)]


def linear_names(units: Units) -> list[str]:
    return [name for name, unit in units.items() if isinstance(unit, Linear)]


def adapter(
    module: nn.Module, rank: int, unit: Linear, leading: tuple[int, ...], axes: Axes
) -> dict[str, jax.Array]:
    """The parameters of a map's adapter, with leading axes."""
    bound = math.prod(unit.input_shape) ** -0.5
    a, b = (*leading, *unit.input_shape, rank), (*leading, rank, *unit.bias_shape)
    a_axes, b_axes = (*unit.input_axes, "lora"), ("lora", *unit.bias_axes)
    return {
        "lora_a": uniform(module, "lora_a", bound, a, (*axes, *a_axes)),
        "lora_b": normal(module, "lora_b", 0.0, b, (*axes, *b_axes)),
    }


def with_dropout(weights: dict, dropout: Callable[[jax.Array], jax.Array]) -> dict:
    """A block's weights, of which each adapter drops some of what it sees."""
    return {
        name: unit | ({"lora_dropout": dropout} if "lora_a" in unit else {})
        for name, unit in weights.items()
    }


def _named(c: ModelConfig) -> list[str]:
    return c.lora_targets.split(",") if c.lora_targets else []
