"""Strict numerics for every test, and eight virtual CPU devices."""

import os
import signal

import jax
import pytest

# A shell that starts the suite in the background has it ignore Ctrl-C, and so would all
# that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_default_matmul_precision", "highest")
# Most of the suite's time is compilation: JAX 0.10 needs half of it with XLA's older
# code for loops. Read with the first use of a device, also in other processes.
_OLDER_LOOPS = "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_OLDER_LOOPS}"
jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True, scope="module")
def forget_compiled_programs():
    """Thousands of compiled programs in one process exhaust its memory maps."""
    yield
    jax.clear_caches()
