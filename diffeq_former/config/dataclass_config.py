"""Settings as nested frozen dataclasses: from a dict, their names, their changes."""

import dataclasses
import difflib
import typing

from diffeq_former.errors import UserError, require_member


def build(cls: type, values: dict, path: str):
    """An instance from nested dicts.

    Raises:
      UserError: for an unknown key (with the nearest known one) or a value of the
        wrong type.
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


def check_members(settings, within: str = "") -> None:
    """Raises UserError for a value that is not among those of its `Literal` type.

    Args:
      settings: A dataclass, whose sections are checked too.
      within: The name of the section it is, followed by a dot.
    """
    for field, kind in typing.get_type_hints(type(settings)).items():
        value, name = getattr(settings, field), within + field
        if dataclasses.is_dataclass(kind):
            check_members(value, f"{name}.")
        elif typing.get_origin(kind) is typing.Literal:
            require_member(name, value, typing.get_args(kind))


def differences(old, new) -> list[str]:
    """Lines `section.field: old -> new`, for the fields that differ."""
    before, after = (flatten(dataclasses.asdict(one)) for one in (old, new))
    return [
        f"{k}: {before[k]!r} -> {after[k]!r}" for k in after if before[k] != after[k]
    ]


def keys(settings) -> list[str]:
    """The names of all settings, and of the sections."""
    sections = (f.name for f in dataclasses.fields(settings))
    return [*flatten(dataclasses.asdict(settings)), *sections]


def flatten(values: dict, within: str = "") -> dict:
    """Nested dicts as one, whose names are `section.field`."""
    flat = {}
    for key, value in values.items():
        name = within + key
        flat |= flatten(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat


def _checked(kind: type, value: object, name: str):
    if typing.get_origin(kind) is typing.Literal:
        kind = str
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise UserError(
            f"{name}: expected {kind.__name__}, got {value!r} ({type(value).__name__})"
        )
    return value
