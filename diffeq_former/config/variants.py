"""Configs with variants: a model and its baselines, --config=FILE:VARIANT."""

import runpy
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from diffeq_former.errors import UserError

BASELINE = {"model.weights": "layer_table", "model.solver": "lie_trotter"}
SHARED = {"model.weights": "shared", "model.solver": "lie_trotter"}

Changes = dict[str, Any]  # values by SECTION.FIELD


def base_config(path: str | Path) -> ConfigDict:
    """Return the config of another file, whose get_config() takes no variant."""
    return runpy.run_path(str(path))["get_config"]()


def apply_variant(
    config: ConfigDict, variant: str, variants: dict[str, Changes]
) -> ConfigDict:
    """Change a config in place into one of its variants, and return it.

    Raises:
      UserError: If there is no such variant.
    """
    if variant not in variants:
        known = ", ".join(variants)
        raise UserError(f"no variant {variant!r}; expected one of {known}")
    config.update_from_flattened_dict(variants[variant])
    return config
