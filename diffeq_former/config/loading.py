"""Turn a file in configs/ and command-line overrides into an immutable `Config`."""

import ast
import dataclasses
import difflib
from collections.abc import Sequence

from ml_collections import ConfigDict

from diffeq_former.config.dataclass_config import build, flatten, keys
from diffeq_former.config.schema import Config
from diffeq_former.config.validation import validate
from diffeq_former.errors import UserError


def default_config() -> ConfigDict:
    """Return all fields with their defaults, locked: unknown keys raise an error."""
    return to_config_dict(Config())


def to_config_dict(config: Config) -> ConfigDict:
    """Return the fields of `config` as a locked ConfigDict."""
    return ConfigDict(dataclasses.asdict(config)).lock()


def resolve(config: ConfigDict | dict) -> Config:
    """Validate a configuration and return it as frozen dataclasses.

    Raises:
      UserError: If a key is unknown, a value has the wrong type, or settings do not
        fit together; the message names the nearest known key or the reason.
    """
    values = config.to_dict() if isinstance(config, ConfigDict) else config
    resolved = build(Config, values, "config")
    validate(resolved)
    return resolved


def overridden(config: ConfigDict, settings: Sequence[str], *, flag: str) -> Config:
    """Return the resolved config with some settings changed.

    Args:
      config: The config; it stays as it is.
      settings: SECTION.FIELD=VALUE, with values as in Python; other text is a string.
      flag: The flag that gave the settings, for error messages.

    Raises:
      UserError: As `resolve`, and if a setting has another form.
    """
    values = config.to_dict()
    for setting in settings:
        path, equals, value = setting.partition("=")
        *sections, field = path.split(".")
        part = values
        for section in sections:
            part = part.get(section) if isinstance(part, dict) else None
        if not equals:
            raise UserError(f"--{flag}: expected SECTION.FIELD=VALUE, got {setting!r}")
        if not isinstance(part, dict):
            raise UserError(
                f"config.{path}: no such key; the nearest is config.{nearest_key(path)}"
            )
        part[field] = _parsed(value)
    return resolve(values)


def check_settings(settings: Sequence[str], *, flag: str) -> None:
    """Check that settings are SECTION.FIELD=VALUE of fields that exist.

    Args:
      settings: The settings, whose values are not checked.
      flag: The flag that gave the settings, for error messages.

    Raises:
      UserError: If one is not; the message names the nearest field.
    """
    known = keys(Config())
    for setting in settings:
        path, equals, _ = setting.partition("=")
        if not equals:
            raise UserError(f"--{flag}: expected SECTION.FIELD=VALUE, got {setting!r}")
        if path not in known:
            near = nearest_key(path)
            raise UserError(f"--{flag}={setting}: no such key; the nearest is {near}")


def nearest_key(path: str) -> str:
    """Return the name of the field that is nearest to a name that no field has.

    A field with the right name in another section is nearest.

    Args:
      path: SECTION.FIELD, or the last part of it alone.
    """
    known = {name: name for name in flatten(dataclasses.asdict(Config()))}
    if "." not in path:
        known = {name.rpartition(".")[2]: name for name in keys(Config())}
    field = f".{path.rpartition('.')[2]}"
    elsewhere = [name for name in known if f".{name}".endswith(field)]
    return known[difflib.get_close_matches(path, elsewhere or known, n=1, cutoff=0)[0]]


def _parsed(value: str):
    try:
        return ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return value
