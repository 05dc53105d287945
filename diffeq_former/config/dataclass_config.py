"""Nested dataclasses as settings: build from dicts, check, flatten and compare."""

import dataclasses
import difflib
import typing

from diffeq_former.config.ranges import is_finite
from diffeq_former.errors import UserError, require


def build(cls: type, values: dict, path: str):
    """Build a dataclass instance from nested dicts.

    Args:
      cls: The dataclass.
      values: Fields and their values; a dict for a field that is a dataclass.
      path: The name of the settings in messages, such as `config`.

    Raises:
      UserError: If a key is unknown (the message names the nearest known key) or a
        value has the wrong type.
    """
    fields = typing.get_type_hints(cls)
    for key in values:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1, cutoff=0)
            raise UserError(
                f"{path}.{key}: no such key; the nearest is {path}.{near[0]}"
            )
    made = {}
    for key, value in values.items():
        kind, name = fields[key], f"{path}.{key}"
        made[key] = (
            build(kind, value, name)
            if dataclasses.is_dataclass(kind) and isinstance(value, dict)
            else _checked(kind, value, name)
        )
    return cls(**made)


def check_values(settings, within: str = "") -> None:
    """Raise UserError if a value violates the annotations of its field.

    Values of a `Literal` type must be one of its members, numbers must be within the
    bounds of an `Annotated` type (see ranges.py), and floats must be finite in float32.

    Args:
      settings: A dataclass; nested dataclasses are checked, too.
      within: Prefix of field names in messages, such as `model.`.
    """
    kinds = typing.get_type_hints(type(settings), include_extras=True)
    for field, kind in kinds.items():
        _check_value(kind, getattr(settings, field), within + field)


def _check_value(kind: type, value, name: str) -> None:
    if dataclasses.is_dataclass(kind):
        check_values(value, f"{name}.")
    elif typing.get_origin(kind) is tuple:
        for item in value:
            _check_value(typing.get_args(kind)[0], item, name)
    elif typing.get_origin(kind) is typing.Literal:
        members = typing.get_args(kind)
        require(value in members, name, "one of " + ", ".join(members), value)
    else:
        finite = not isinstance(value, float) or is_finite(value)
        require(finite, name, "a finite number", value)
        for bound in getattr(kind, "__metadata__", ()):
            require(bound(value), name, bound.text, value)


def differences(old, new) -> list[str]:
    """Return a line `section.field: old -> new` for each field that differs."""
    before, after = (flatten(dataclasses.asdict(one)) for one in (old, new))
    return [
        f"{k}: {before[k]!r} -> {after[k]!r}" for k in after if before[k] != after[k]
    ]


def keys(settings) -> list[str]:
    """Return the names of all fields (`section.field`) and of the sections."""
    sections = (f.name for f in dataclasses.fields(settings))
    return [*flatten(dataclasses.asdict(settings)), *sections]


def flatten(values: dict, within: str = "") -> dict:
    """Flatten nested dicts into one with keys such as `section.field`."""
    flat = {}
    for key, value in values.items():
        name = within + key
        flat |= flatten(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat


def _checked(kind: type, value: object, name: str):
    if typing.get_origin(kind) is typing.Literal:
        kind = str
    if typing.get_origin(kind) is tuple:
        item = typing.get_args(kind)[0]
        if not isinstance(value, list | tuple):
            raise UserError(
                f"{name}: expected a tuple of {item.__name__}, got {value!r}"
                f" ({type(value).__name__})"
            )
        return tuple(_checked(item, one, name) for one in value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise UserError(
            f"{name}: expected {kind.__name__}, got {value!r} ({type(value).__name__})"
        )
    return value
