"""Devices that are not there, and what a test that compiles for them needs."""

import contextlib
import functools
import importlib.util

import jax
import pytest

from diffeq_former.planning.targets import parse_target, topology_devices

_PACKAGES = {"tpu": ("libtpu", "plan-tpu"), "gpu": ("jax_plugins", "plan-gpu")}


def on_target(text, *values):
    """A test's parameter, a target; the test is skipped without its compiler."""
    package, extra = _PACKAGES[text.split(":")[0]]
    missing = importlib.util.find_spec(package) is None
    reason = f"needs the compiler: pip install -e '.[{extra}]'"
    marks = [pytest.mark.targets, pytest.mark.skipif(missing, reason=reason)]
    return pytest.param(text, *values, marks=marks)


@functools.cache
def devices_of(text):
    return topology_devices(parse_target(text))


@contextlib.contextmanager
def as_released():
    """The settings of a run, where those of the tests would change the program."""
    flags = {
        "jax_disable_most_optimizations": True,
        "jax_enable_compilation_cache": True,
    }
    for name, value in flags.items():
        jax.config.update(name, not value)
    try:
        with jax.numpy_rank_promotion("allow"), jax.default_matmul_precision(None):
            yield
    finally:
        for name, value in flags.items():
            jax.config.update(name, value)
