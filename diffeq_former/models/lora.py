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
from diffeq_former.models.weight_specs import LinearSpec

NAMES = ("lora_a", "lora_b")


def scale(c: ModelConfig) -> float:
    """Return alpha / r, the factor of the product A B."""
    return c.lora_alpha / c.lora_rank


def is_adapted(c: ModelConfig, name: str) -> bool:
    """Return whether the linear map of this name has an adapter."""
    return c.lora_rank > 0 and (not c.lora_targets or name in c.lora_targets)


def adapter(
    module: nn.Module, rank: int, spec: LinearSpec, leading: tuple[int, ...], axes: Axes
) -> dict[str, jax.Array]:
    """Create the parameters of a linear map's adapter.

    Args:
      module: The module that owns the parameters.
      rank: The adapter's rank r.
      spec: The specification of the linear map.
      leading: Sizes of leading axes, such as layers.
      axes: Logical names of the leading axes.
    """
    bound = math.prod(spec.input_shape) ** -0.5
    a, b = (*leading, *spec.input_shape, rank), (*leading, rank, *spec.bias_shape)
    a_axes, b_axes = (*spec.input_axes, "lora"), ("lora", *spec.bias_axes)
    return {
        "lora_a": uniform(module, "lora_a", bound, a, (*axes, *a_axes)),
        "lora_b": normal(module, "lora_b", 0.0, b, (*axes, *b_axes)),
    }


def with_dropout(weights: dict, dropout: Callable[[jax.Array], jax.Array]) -> dict:
    """Return a block's weights with dropout on the inputs of each adapter."""
    return {
        name: layer | ({"lora_dropout": dropout} if "lora_a" in layer else {})
        for name, layer in weights.items()
    }
