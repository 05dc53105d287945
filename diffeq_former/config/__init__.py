"""Every setting, with its default, once: frozen dataclasses and the way into them.

A file in configs/ starts from `default_config()`, a locked ConfigDict with all fields,
and changes some; the command line overrides others; `resolve()` turns the result into
an immutable `Config`. Functions take only the section they need.
"""

from diffeq_former.config.loading import default_config, resolve, to_config_dict
from diffeq_former.config.schema import (
    Config,
    DataConfig,
    FinetuneConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    ProfileConfig,
    Stabilisers,
    TrainingConfig,
)

__all__ = [
    "Config",
    "DataConfig",
    "FinetuneConfig",
    "MeshConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ProfileConfig",
    "Stabilisers",
    "TrainingConfig",
    "default_config",
    "resolve",
    "to_config_dict",
]
