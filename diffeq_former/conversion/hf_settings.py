"""Validation of the settings in a Hugging Face model's config.json."""

from collections.abc import Mapping

from diffeq_former.config import ModelConfig
from diffeq_former.errors import UserError

# Names of activations in transformers -> ours.
_ACTIVATIONS = {"gelu": "exact_gelu", "relu2": "relu_squared"}


def size(given: Mapping, name: str) -> int:
    """Return a required setting, which must be a positive integer."""
    value = given.get(name)
    if type(value) is not int or value < 1:
        raise UserError(f"{name}: expected a number of 1 or more, got {value!r}")
    return value


def expect(given: Mapping, name: str, *values) -> None:
    """Raise UserError unless the setting is absent or has one of the values."""
    value = given.get(name, values[0])
    if value not in values:
        supported = " or ".join(map(repr, values))
        raise UserError(f"{name}: only {supported} is supported, got {value!r}")


def read_activation(given: Mapping, name: str, *defaults: str) -> str:
    """Return `model.activation` from the setting `name` of a config.json.

    Args:
      given: The settings.
      name: The name of the setting.
      *defaults: The names of the block's own activation, of which the first holds if
        the setting is absent.
    """
    expect(given, name, *defaults, *_ACTIVATIONS)
    return _ACTIVATIONS.get(given.get(name), "default")


def write_activation(c: ModelConfig, default: str) -> str:
    """Return the activation's name in transformers; `default` is the block's own."""
    names = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
    return names.get(c.activation, default)
