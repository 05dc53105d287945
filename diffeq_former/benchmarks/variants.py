"""Variants of a config, written as "name: section.field=value ..."."""

import ast

from ml_collections import ConfigDict

from diffeq_former.config import Config, resolve
from diffeq_former.errors import UserError

BASE = "base"  # the config itself


def variants(config: ConfigDict, described: list[str]) -> dict[str, Config]:
    """Return the config itself under the name `base`, and all variants by name.

    Raises:
      UserError: If a variant cannot be parsed or has an invalid field or value.
    """
    named = {BASE: resolve(config)}
    for text in described:
        name, colon, overrides = text.partition(":")
        name = name.strip()
        if not colon or not name or name in named:
            raise UserError(
                "--variant: expected 'NAME: SECTION.FIELD=VALUE ...' with a unique"
                f" name, got {text!r}"
            )
        named[name] = _overridden(config, overrides.split())
    return named


def _overridden(config: ConfigDict, overrides: list[str]) -> Config:
    values = config.to_dict()
    for override in overrides:
        path, equals, value = override.partition("=")
        *sections, field = path.split(".")
        part = values
        for section in sections:
            part = part.get(section) if isinstance(part, dict) else None
        if not equals or not isinstance(part, dict):
            raise UserError(
                f"--variant: expected SECTION.FIELD=VALUE, got {override!r}"
            )
        part[field] = _parsed(value)
    return resolve(values)


def _parsed(value: str):
    try:
        return ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return value
