"""Devices that are not there, and what a test that compiles for them needs."""

import contextlib
import functools

import jax
import pytest

from diffeq_former.planning.targets import missing_extra, parse_target, topology_devices


def on_target(text, *values):
    """A test's parameter, a target; the test is skipped without its compiler."""
    extra = missing_extra(parse_target(text))
    reason = f"needs the compiler: pip install -e '.[{extra}]'"
    marks = [pytest.mark.targets, pytest.mark.skipif(bool(extra), reason=reason)]
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
