import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache


@pytest.fixture(scope="module")
def compile_once(tmp_path_factory):
    """Each call of `train` compiles the same programs; on one device they are kept."""
    directory = str(tmp_path_factory.mktemp("cache"))
    settings = {
        "jax_compilation_cache_dir": directory,
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_disable_most_optimizations": True,  # compiles faster
    }
    before = {name: jax.config.values[name] for name in settings}
    for values in (settings, before):
        for name, value in values.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        if values is settings:
            yield
