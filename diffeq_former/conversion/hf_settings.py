"""Validation of the settings in a Hugging Face model's config.json."""

from collections.abc import Mapping

from diffeq_former.errors import UserError


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
