"""Entropies of heads that are known, and of the model's own logits at the end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TINY, mesh_of, params_of, tokens_of

from diffeq_former.analysis import depth
from diffeq_former.analysis.entropy import entropies
from diffeq_former.analysis.loaded_model import LoadedModel
from diffeq_former.models.transformer import Transformer


@pytest.fixture(scope="module")
def model():
    return LoadedModel("run", TINY, params_of(TINY), None, mesh_of())


def test_the_last_is_that_of_the_models_prediction(model):
    tokens_BL = tokens_of(TINY, batch=1)
    x_LD = depth.embed(TINY, model.outer, tokens_BL[0])
    found = entropies(TINY, model.outer, depth.states(TINY, model.table, x_LD))
    assert found.shape == (TINY.num_layers + 1, TINY.max_len)
    logits = jax.jit(Transformer(TINY).apply)({"params": model.params}, tokens_BL)[0]
    p = np.exp(np.asarray(logits, float))
    p /= p.sum(-1, keepdims=True)
    np.testing.assert_allclose(found[-1], -(p * np.log(p)).sum(-1), rtol=1e-4)


@pytest.mark.parametrize("scale, expected", [(0.0, np.log(32)), (1e4, 0.0)])
def test_heads_that_know_nothing_and_all(model, scale, expected):
    token = model.outer["embedding"]["token"]
    outer = model.outer | {
        "embedding": model.outer["embedding"] | {"token": scale * token}
    }
    states_TLD = jnp.asarray(
        np.random.default_rng(0).normal(size=(2, 3, 16)), "float32"
    )
    np.testing.assert_allclose(
        entropies(TINY, outer, states_TLD), expected, rtol=1e-6, atol=1e-6
    )
