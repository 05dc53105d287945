"""From a file in configs/ and the command line to an immutable `Config`."""

import dataclasses

from ml_collections import ConfigDict

from diffeq_former.config.dataclass_config import build
from diffeq_former.config.schema import Config
from diffeq_former.config.validation import validate


def default_config() -> ConfigDict:
    """All fields with their defaults, locked: unknown keys are refused."""
    return to_config_dict(Config())


def to_config_dict(config: Config) -> ConfigDict:
    return ConfigDict(dataclasses.asdict(config)).lock()


def resolve(config: ConfigDict | dict) -> Config:
    """Checks and freezes a configuration.

    Raises:
      UserError: for an unknown key (with the nearest known one), a value of the
        wrong type, or a combination that makes no sense (with the reason).
    """
    values = config.to_dict() if isinstance(config, ConfigDict) else config
    resolved = build(Config, values, "config")
    validate(resolved)
    return resolved
