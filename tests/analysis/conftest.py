"""Compilation is most of the time here, and speed of what is compiled none of it."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="package")
def compile_quickly():
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
