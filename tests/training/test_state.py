import jax
import numpy as np
import pytest
from cases import TINY, mesh_of

from diffeq_former.config import Config
from diffeq_former.training import state


@pytest.fixture(scope="module")
def created():
    return state.create(Config(model=TINY), mesh_of())


@pytest.mark.parametrize("num_devices", [1, pytest.param(8, marks=pytest.mark.mesh)])
def test_abstract_describes_what_create_makes(num_devices):
    mesh = mesh_of(num_devices)
    created = state.create(Config(model=TINY), mesh)
    abstract = state.abstract(Config(model=TINY), mesh)
    assert jax.tree.structure(abstract) == jax.tree.structure(created)
    for a, b in zip(jax.tree.leaves(abstract), jax.tree.leaves(created), strict=True):
        assert (a.shape, a.dtype, a.sharding) == (b.shape, b.dtype, b.sharding)
    assert len(created.step.sharding.device_set) == num_devices


def test_a_state_starts_at_step_0_with_float32_parameters(created):
    counters = (created.step, created.bad_steps, created.skipped_steps)
    assert [int(x) for x in counters] == [0, 0, 0]
    assert {str(x.dtype) for x in jax.tree.leaves(created.params)} == {"float32"}


def test_parameters_are_a_function_of_the_seed(created):
    def token(seed):
        again = state.create(Config(model=TINY, seed=seed), mesh_of())
        return np.asarray(again.params["embedding"]["token"])

    first = np.asarray(created.params["embedding"]["token"])
    np.testing.assert_array_equal(token(0), first)
    assert not np.allclose(token(1), first)
