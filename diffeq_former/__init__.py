"""Continuous-depth transformers with weights generated as functions of depth.

    import diffeq_former
    run = diffeq_former.load("runs/demo")

The names in `__all__` are the public API, see docs/api.md. They are imported when they
are first used, so that importing the package is quick.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diffeq_former.api import Run, load
    from diffeq_former.config import Config, ModelConfig, default_config, resolve
    from diffeq_former.errors import UserError
    from diffeq_former.models.transformer import Transformer

_MODULES = {
    "Config": "config",
    "ModelConfig": "config",
    "Run": "api",
    "Transformer": "models.transformer",
    "UserError": "errors",
    "default_config": "config",
    "load": "api",
    "resolve": "config",
}

__all__ = [
    "Config",
    "ModelConfig",
    "Run",
    "Transformer",
    "UserError",
    "default_config",
    "load",
    "resolve",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
