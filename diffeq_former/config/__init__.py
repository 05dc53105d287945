"""Configuration: a schema of frozen dataclasses, its validation and its loading.

A file in configs/ starts from `default_config()`, a locked ConfigDict with all fields,
and changes some of them; the command line overrides others; `resolve()` turns the
result into an immutable `Config`. Functions take only the section that they need.
"""

from diffeq_former.config.loading import default_config, resolve, to_config_dict
from diffeq_former.config.model_schema import ModelConfig, Stabilisers
from diffeq_former.config.schema import (
    Config,
    DataConfig,
    FinetuneConfig,
    HarnessConfig,
    MeshConfig,
    OptimizerConfig,
    ProfileConfig,
    TrackingConfig,
    TrainingConfig,
)

__all__ = [
    "Config",
    "DataConfig",
    "FinetuneConfig",
    "HarnessConfig",
    "MeshConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ProfileConfig",
    "Stabilisers",
    "TrackingConfig",
    "TrainingConfig",
    "default_config",
    "resolve",
    "to_config_dict",
]
