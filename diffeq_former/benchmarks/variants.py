"""Variants of a config, written as "name: section.field=value ..."."""

from ml_collections import ConfigDict

from diffeq_former.config import Config, resolve
from diffeq_former.config.loading import overridden
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
        named[name] = overridden(config, overrides.split(), flag="variant")
    return named
