"""Compiled programs are kept between runs, so that all but the first start quickly."""

import os
from pathlib import Path

import jax


def enable() -> None:
    """Keeps every program, in JAX_COMPILATION_CACHE_DIR or ~/.cache/diffeq_former.

    Does nothing where that folder cannot be written. With several CPU devices nothing
    is kept: programs that were read back wait there for each other for ever (JAX 0.10).
    """
    if jax.default_backend() == "cpu" and jax.device_count() > 1:
        jax.config.update("jax_compilation_cache_dir", None)
        return
    directory = Path(
        os.environ.get("JAX_COMPILATION_CACHE_DIR")
        or Path.home() / ".cache" / "diffeq_former"
    )
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if os.access(directory, os.W_OK):
        jax.config.update("jax_compilation_cache_dir", str(directory))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
