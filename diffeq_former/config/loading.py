"""Turn a file in configs/ and command-line overrides into an immutable `Config`."""

import dataclasses

from ml_collections import ConfigDict

from diffeq_former.config.dataclass_config import build
from diffeq_former.config.schema import Config
from diffeq_former.config.validation import validate


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
