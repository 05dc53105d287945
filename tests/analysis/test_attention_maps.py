"""Figures of maps that are known, and other answers beside exponents."""

import jax
import jax.numpy as jnp
import numpy as np
from cases import TINY, mesh_of, params_of, tokens_of

from diffeq_former.analysis import depth
from diffeq_former.analysis.attention_maps import describe
from diffeq_former.analysis.loaded_model import LoadedModel
from diffeq_former.analysis.token_sensitivity import gradient_x_input, rollout


def test_figures_of_even_and_of_sharp_maps():
    even = np.tril(np.ones((4, 4))) / np.arange(1, 5)[:, None]
    back = np.eye(4, k=-1)
    back[0, 0] = 1
    found = describe(np.stack([even, back])[:, None])
    logs = np.log([1, 2, 3, 4]).mean()
    np.testing.assert_allclose(found["entropy"][:, 0], [logs, 0], atol=1e-12)
    np.testing.assert_allclose(found["distance"][:, 0], [0.75, 0.75])
    np.testing.assert_allclose(found["first"][:, 0], [25 / 48, 0.5])
    np.testing.assert_allclose(found["self"][:, 0], [25 / 48, 0.25])


def test_rollout_multiplies_the_mixed_maps():
    draws = np.random.default_rng(0).random((3, 2, 5, 5))
    maps = np.tril(draws)
    maps /= maps.sum(-1, keepdims=True)
    chain = np.eye(5)
    for map_NLL in maps:
        chain = (map_NLL.mean(0) / 2 + np.eye(5) / 2) @ chain
    found = rollout(jnp.asarray(maps, jnp.float32), 3)
    np.testing.assert_allclose(found, chain[3], rtol=1e-5, atol=1e-7)
    assert abs(float(found.sum()) - 1) < 1e-5


def test_gradient_x_input_is_the_slope_as_a_token_fades():
    """d/ds of the largest logit, with token j's embedding times s, at s = 1."""
    model = LoadedModel("run", TINY, params_of(TINY, stddev=0.1), None, mesh_of())
    x_LD = np.asarray(depth.embed(TINY, model.outer, tokens_of(TINY, 1)[0]))
    last = 5
    found = np.asarray(gradient_x_input(TINY, model.outer, model.table, x_LD, last))
    assert (found[last + 1 :] == 0).all()

    @jax.jit
    def largest(x_LD):
        at_end_LD = depth.states(TINY, model.table, x_LD)[-1]
        return depth.logits(TINY, model.outer, at_end_LD)[last].max()

    def faded(j, share):
        """The embeddings, of which token j's is times a share."""
        return x_LD * np.where(np.arange(len(x_LD)) == j, share, 1)[:, None]

    for j in (0, 5):
        ahead, behind = (float(largest(faded(j, s))) for s in (1.01, 0.99))
        np.testing.assert_allclose(found[j], (ahead - behind) / 0.02, rtol=1e-2)
