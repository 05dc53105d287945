"""Identity weights gather all tokens, as is proved; weights that grow scatter them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TINY, mesh_of, params_of

from diffeq_former.analysis import clustering, spectra
from diffeq_former.analysis.depth import step
from diffeq_former.analysis.loaded_model import LoadedModel
from diffeq_former.config import Stabilisers

IDENTITY = jnp.eye(3)


@jax.jit
def by_identity(degree, z_nd):
    h, times_T = clustering.STEP_SIZE, clustering.STEP_SIZE * jnp.arange(200)
    field = clustering.growing(IDENTITY, IDENTITY, degree)
    return clustering.simulate(field, times_T, z_nd, h, clustering.on_sphere)


@pytest.mark.parametrize("seed", range(3))
def test_identity_weights_gather_all_tokens_of_the_sphere_in_one_point(seed):
    """Geshkovski et al. 2023, theorem 4.1 (d >= 3); growing weights freeze them."""
    z_nd = clustering.random_weights(seed)[2]
    states = np.asarray(by_identity(0, z_nd))
    np.testing.assert_allclose(np.linalg.norm(states, axis=-1), 1, rtol=1e-5)
    dispersion = clustering.dispersion(states)
    assert clustering.num_clusters(states)[0] > 10
    assert clustering.num_clusters(states)[-1] == 1
    assert dispersion[0] > 0.5 and dispersion[-1] < 1e-3
    assert (np.diff(dispersion) < 1e-6).all()
    scattered = np.asarray(by_identity(4, z_nd))
    assert clustering.num_clusters(scattered)[-1] > 5
    assert clustering.dispersion(scattered)[-1] > 0.5


def test_two_points_meet_as_their_equation_says(x64):
    """On the sphere, with u = cos of their angle: du/dt = 2 p (1 - u^2), p = softmax.

    Each is moved by p times the other, without what lies along itself.
    """
    u, h, n = 0.2, 1e-3, 500
    z_nd = jnp.array([[1, 0, 0], [u, np.sqrt(1 - u**2), 0]])
    field = clustering.growing(IDENTITY, IDENTITY, 0)
    states = clustering.simulate(
        field, h * jnp.arange(n), z_nd, h, clustering.on_sphere
    )
    for _ in range(n):
        p = 1 / (1 + np.exp(1 - u))
        along = (1 - p) + p * u  # the part of the step that only lengthens
        u += h * 2 * p * (1 - u**2) / (1 + h * along)
    assert float(states[-1, 0] @ states[-1, 1]) == pytest.approx(u, abs=5e-4)


def test_the_simulation_of_the_paper():
    steady, grown = ([clustering.grown(s, d) for s in range(3)] for d in (0, 4))
    for states in (*steady, *grown):
        assert states.shape == (201, 40, 3) and np.isfinite(states).all()
        np.testing.assert_allclose(states.mean(-1), 0, atol=1e-5)
        np.testing.assert_allclose(states.var(-1), 1, rtol=1e-4)


def test_growth_keeps_tokens_of_identity_weights_apart():
    """Each attends more and more to itself alone, and stays."""
    z_nd = clustering.random_weights(0)[2]
    ways = [np.asarray(by_identity(degree, z_nd)) for degree in (0, 1, 2)]
    counts = [clustering.num_clusters(states)[-1] for states in ways]
    assert counts[0] < counts[1] < counts[2]


def test_counts_and_dispersion_of_known_groups():
    angles = np.radians([0, 2, 4, 90, 92, 180])
    u = np.stack([np.cos(angles), np.sin(angles), 0 * angles], -1)
    states = np.stack([u, 5 * u, np.tile(u[:1], (6, 1))])
    np.testing.assert_array_equal(clustering.num_clusters(states), [3, 3, 1])
    around = np.stack([u[:1], -u[:1]], 1)
    np.testing.assert_allclose(clustering.dispersion(around), 1)
    np.testing.assert_allclose(clustering.dispersion(states)[2], 0, atol=1e-12)


def test_three_axes_keep_all_that_three_dimensions_have():
    random = np.random.default_rng(0)
    flat = random.normal(size=(5, 4, 3)) @ random.normal(size=(3, 9))
    way = clustering.in_three(flat)
    assert way.shape == (5, 4, 3)
    gaps = [np.linalg.norm(v[0][:, None] - v[-1][None], axis=-1) for v in (flat, way)]
    np.testing.assert_allclose(*gaps, rtol=1e-9)
    np.testing.assert_array_equal(clustering.in_three(way), way)


@pytest.mark.parametrize("norm", ["pre", "none"])
def test_a_models_heads_move_tokens_as_its_attention_does(norm):
    """The second of two tokens sees all in the model too; without its biases."""
    config = dataclasses.replace(TINY, stabilisers=Stabilisers(norm=norm))
    model = LoadedModel("run", config, params_of(config), None, mesh_of())
    weights = model.weights_at(model.times(None))
    for unit in weights.values():
        if "bias" in unit:
            unit["bias"] = np.zeros_like(unit["bias"])
    z_nD = np.random.default_rng(0).normal(size=(2, 16)).astype("float32")
    products = spectra.products(config, weights)
    states = clustering.of_model(config, weights, products, z_nD)
    assert states.shape == (4, 2, 16)
    weights_S = {n: {k: v[:1] for k, v in u.items()} for n, u in weights.items()}
    weights_S["ff_out"] = {k: 0 * v for k, v in weights_S["ff_out"].items()}
    expected = jax.jit(step, static_argnums=0)(config, weights_S, z_nD)
    np.testing.assert_allclose(states[1, 1], expected[1], atol=1e-5)
