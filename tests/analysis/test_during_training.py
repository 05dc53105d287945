"""Figures on the way through training, on meshes and of odd models."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from cases import TINY, mesh_of, params_of
from prepared import prepare_words

from diffeq_former.analysis.during_training import make_analysis
from diffeq_former.config import Config


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return prepare_words(tmp_path_factory.mktemp("data"), seq_len=8)


def figures_of(dataset, mesh, *, broken=False, **model) -> dict[str, float]:
    config = Config(model=dataclasses.replace(TINY, vocab_size=258, **model))
    params = params_of(config.model)
    if broken:
        params["embedding"]["token"] = params["embedding"]["token"] * jnp.inf
    return make_analysis(config, dataset, mesh)(params)


@pytest.mark.mesh
def test_a_mesh_gives_what_one_device_gives(dataset):
    model = {"block": "llama", "num_kv_heads": 2, "remat": "full"}
    model |= {"num_heads": 4, "generate_weights": "per_step", "dtype": "bfloat16"}
    mesh = mesh_of(8, data=2, fsdp=2, tensor=2)
    found = figures_of(dataset, mesh, **model)
    assert found == pytest.approx(figures_of(dataset, mesh_of(), **model), rel=1e-4)


def test_one_step_has_no_angle_and_one_place(dataset):
    found = figures_of(dataset, mesh_of(), num_layers=1)
    assert np.isnan(found.pop("angle"))
    assert found["cost_over_least"] == pytest.approx(1)
    assert found["qk_positive_share/first"] == found["qk_positive_share/last"]
    assert np.isfinite(list(found.values())).all()


def test_what_is_not_finite_has_no_figures(dataset):
    assert figures_of(dataset, mesh_of(), broken=True) == {}
