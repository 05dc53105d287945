"""Closed forms of drift, and of gradients by finite differences."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TINY, mesh_of, params_of, stabilised, tokens_of

from diffeq_former.analysis import depth, drift, sensitivity
from diffeq_former.analysis.loaded_model import LoadedModel
from diffeq_former.models.loss import NO_TARGET

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(40, 6))
TURN = np.linalg.qr(RANDOM.normal(size=(6, 6)))[0]


def test_cka_is_one_for_what_is_turned_scaled_and_shifted():
    assert drift.linear_cka(X, X @ TURN) == pytest.approx(1, abs=1e-12)
    assert drift.linear_cka(X, 1e-30 * X @ TURN) == pytest.approx(1, abs=1e-12)
    assert drift.linear_cka(X, 3 - 2 * X) == pytest.approx(1, abs=1e-12)


def test_cka_is_zero_for_orthogonal_data():
    """Columns of a basis that has the mean of all tokens as its first."""
    basis = np.linalg.qr(np.column_stack([np.ones(40), RANDOM.normal(size=(40, 12))]))
    a, b = basis[0][:, 1:7], basis[0][:, 7:]
    assert drift.linear_cka(a, b) == pytest.approx(0, abs=1e-12)
    assert drift.linear_cka(a, a + b) == pytest.approx(0.5, abs=1e-12)


def test_cka_of_one_feature_is_the_squared_correlation():
    a, b = X[:, :1], X[:, :1] + X[:, 1:2]
    expected = np.corrcoef(a[:, 0], b[:, 0])[0, 1] ** 2
    assert drift.linear_cka(a, b) == pytest.approx(expected, abs=1e-12)


def test_cka_of_tokens_that_are_all_the_same_is_zero():
    same = np.float32(0.1) * np.ones((40, 6), np.float32)
    assert drift.linear_cka(X, same) == 0 and drift.linear_cka(0 * X, X) == 0
    rounded = np.nextafter(same, (X > 0).astype(np.float32))
    assert drift.linear_cka(X, rounded.astype(float)) == 0
    assert np.isnan(drift.linear_cka(X, np.full_like(X, np.inf)))


def test_cosines():
    assert drift.cosine(X, 5 * X) == pytest.approx(1, abs=1e-12)
    assert drift.cosine(X, -X) == pytest.approx(-1, abs=1e-12)
    right = np.stack([-X[:, 1], X[:, 0]], -1)
    assert drift.cosine(X[:, :2], right) == pytest.approx(0, abs=1e-12)
    assert drift.cosine(X, 0 * X) == 0


def test_figures_of_known_states():
    states_TND = np.stack([X, 2 * X, 2 * X @ TURN, np.where(X > 2, np.inf, X)])
    found = drift.describe(states_TND[:3])
    shapes = {name: values.shape for name, values in found.items()}
    assert shapes == {
        **dict.fromkeys(("cosine_step", "cka_step"), (2,)),
        **dict.fromkeys(("cosine_input", "cka_input", "effective_rank", "norm"), (3,)),
    }
    np.testing.assert_allclose(found["cka_input"], 1)
    np.testing.assert_allclose(found["norm"] / found["norm"][0], [1, 2, 2])
    np.testing.assert_allclose(found["effective_rank"], found["effective_rank"][0])
    assert found["cosine_step"][0] == pytest.approx(1) and found["cosine_step"][1] < 0.9
    last = {name: values[-1] for name, values in drift.describe(states_TND).items()}
    assert all(np.isnan(value) for value in last.values())


@pytest.mark.parametrize(
    "config, places", [(TINY, (0, 2)), (stabilised()[0], (1, 3))], ids=["pre", "post"]
)
def test_gradients_by_depth_are_finite_differences(x64, config, places):
    """Of the loss by each state's entries, with all later steps written out."""
    config = dataclasses.replace(config, vocab_size=11)
    model = LoadedModel("run", config, params_of(config), None, mesh_of())
    c, B, L = config, 2, 3
    exact = lambda tree: jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), tree)  # noqa: E731
    outer, table = exact(model.outer), exact(model.table)
    inputs_BL, targets_BL = tokens_of(c)[:, :L], tokens_of(c, seed=2)[:, :L].copy()
    targets_BL[1, 2] = NO_TARGET
    first_BLD = exact(sensitivity.embed(c, model.outer, inputs_BL))
    loss, states_TBLD, norms_T = sensitivity.measure(
        c, outer, table, first_BLD, targets_BL
    )

    def loss_from(k, x_BLD):
        for t in range(k, c.num_layers):
            weights_S = jax.tree.map(lambda w, t=t: w[t], table)
            x_BLD = jax.vmap(lambda x_LD, w=weights_S: depth.step(c, w, x_LD))(x_BLD)
        logits_BLV = jax.vmap(lambda x_LD: depth.logits(c, outer, x_LD))(x_BLD)
        log_p_BLV, total = jax.nn.log_softmax(logits_BLV), 0.0
        for b, place in np.argwhere(targets_BL != NO_TARGET):
            total -= log_p_BLV[b, place, targets_BL[b, place]]
        return total / (B * L - 1)

    h = 3e-3  # logits are float32
    moves = h * np.eye(B * L * c.d_model).reshape(-1, B, L, c.d_model)
    moves = np.concatenate([0 * moves[:1], moves, -moves])
    for k in places:
        of_states = jax.jit(
            lambda x_BLD, k=k: jax.lax.map(lambda m: loss_from(k, x_BLD + m), moves)
        )
        there, *around = np.asarray(of_states(states_TBLD[k]))
        assert there == pytest.approx(float(loss), rel=1e-5)
        ahead, back = np.reshape(around, (2, -1))
        expected = np.linalg.norm((ahead - back) / (2 * h))
        assert float(norms_T[k]) == pytest.approx(expected, rel=1e-3)
