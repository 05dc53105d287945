"""Reads the settings of a config.json of a Hugging Face model."""

from collections.abc import Mapping

from diffeq_former.errors import UserError


def size(given: Mapping, name: str) -> int:
    """A setting that must be there: a number of 1 or more."""
    value = given.get(name)
    if type(value) is not int or value < 1:
        raise UserError(f"{name}: expected a number of 1 or more, got {value!r}")
    return value


def expect(given: Mapping, name: str, *values) -> None:
    """Raises UserError unless the setting has one of the values, or is not there."""
    value = given.get(name, values[0])
    if value not in values:
        wanted = " or ".join(map(repr, values))
        raise UserError(f"{name}: our model has only {wanted}, got {value!r}")
