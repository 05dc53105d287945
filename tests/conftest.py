"""Strict numerics for every test, one CPU device, and one cache of compiled programs.

With --mesh: only the tests marked so, which need eight devices.
"""

import gc
import os
import signal
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[1]
# A process has 65,530 memory maps; each compiled program takes some.
MAX_MEMORY_MAPS = 30_000

# A shell that starts the suite in the background has it ignore Ctrl-C, and so would all
# that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Most of the suite's time is compilation. XLA's older code for loops, without splitting
# a program into parts, needs less than half of it. Read with the first use of a device.
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters",
        "--xla_cpu_parallel_codegen_split_count=1",
    ]
)
# Of processes that tests start; they import the package from this checkout.
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "JAX_PLATFORMS": "cpu",
    "PYTHONPATH": str(ROOT),
}
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_default_matmul_precision", "highest")


def pytest_addoption(parser):
    words = "Run the tests marked `mesh`, on eight virtual devices, and no others."
    parser.addoption("--mesh", action="store_true", help=words)
    words = "Store the losses that training/test_golden_losses.py finds."
    parser.addoption("--write_golden_losses", action="store_true", help=words)
    words = "The number of random cases of each test in tests/soak."
    parser.addoption("--examples", type=int, default=25, help=words)
    words = "The seed of the first of them."
    parser.addoption("--first_seed", type=int, default=0, help=words)


def pytest_configure(config):
    """Each program is compiled once: by a worker or a process, in this run or before.

    It is kept as JAX names it, by its code, its flags and the versions. Programs for
    several CPU devices that were read back wait for each other for ever (JAX 0.10).
    """
    cache = str(config.cache.mkdir("compiled"))
    os.environ["JAX_COMPILATION_CACHE_DIR"] = cache  # for processes
    if config.getoption("mesh"):
        jax.config.update("jax_num_cpu_devices", 8)
    else:
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: tests also wait, for processes and for time."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_collection_finish():
    """Tracing makes many objects; each search for cycles would visit all modules."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def pytest_collection_modifyitems(config, items):
    wanted = config.getoption("mesh")
    others = [x for x in items if bool(x.get_closest_marker("mesh")) != wanted]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [x for x in items if x not in set(others)]


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True, scope="module")
def forget_compiled_programs():
    """Thousands of compiled programs in one process exhaust its memory maps."""
    yield
    with open("/proc/self/maps") as maps:
        if sum(1 for _ in maps) > MAX_MEMORY_MAPS:
            jax.clear_caches()
