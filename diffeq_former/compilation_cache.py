"""Persistent cache of compiled programs, which shortens the start of later runs."""

import os
import re
import warnings
from pathlib import Path

import jax

_UNREADABLE = re.compile(r"Error reading persistent compilation cache entry for '(.+)'")


def enable() -> None:
    """Cache all programs in JAX_COMPILATION_CACHE_DIR or ~/.cache/diffeq_former.

    The cache is disabled with several CPU devices, where programs that are loaded from
    it deadlock (JAX 0.10). A folder that is not writable is ignored.
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
        _replace_damaged(directory)


def _replace_damaged(directory: Path) -> None:
    """Remove entries that JAX fails to read, instead of showing its warning.

    JAX compiles the program then, but would never replace the entry. As its warning
    has only the name of the program, all entries of that name are removed.
    """
    show = warnings.showwarning

    def show_others(message, *args, **options) -> None:
        if match := _UNREADABLE.match(str(message)):
            for path in directory.glob(f"{match[1]}-*"):
                path.unlink(missing_ok=True)
        else:
            show(message, *args, **options)

    warnings.showwarning = show_others
