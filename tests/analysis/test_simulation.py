"""Tokens that move by attention alone: growth of the weights, and known dynamics."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TINY, mesh_of, params_of

from diffeq_former.analysis import clustering, simulation, spectra
from diffeq_former.analysis.depth import step
from diffeq_former.analysis.loaded_model import LoadedModel
from diffeq_former.analysis.trajectory import interaction_energy
from diffeq_former.config import Stabilisers
from diffeq_former.errors import UserError

IDENTITY = jnp.eye(3)
EVERY = [f"({base})^{p}" for base in ("t/T", "1+t") for p in range(10)]
T, H = 10.0, 0.05


def betas(name, step_size=H, equal_integrals=True, horizon=T):
    [beta] = simulation.parse_betas([name], horizon, equal_integrals)
    return simulation.step_betas(beta, simulation.count_steps([beta], step_size))


def by_identity(name, num_seeds=3):
    return simulation.trajectories("identity", betas(name), H, "sphere", num_seeds)


@pytest.mark.parametrize("name", EVERY)
def test_integrals_are_equal_and_values_are_those_of_the_polynomial(name):
    """Compared with the polynomial at the middle of each step, to second order."""
    betas_T, p = betas(name), int(name[-1])
    assert H * betas_T.sum() == pytest.approx(T, rel=1e-12)
    middle = H * (np.arange(200) + 0.5)
    raw = (middle / T) ** p if "T" in name else (1 + middle) ** p
    np.testing.assert_allclose(betas_T, raw * T / (H * raw.sum()), rtol=1e-3, atol=1e-3)


def test_integrals_without_scaling():
    for p, fast in ((0, 1), (2, 1), (4, 700)):  # (1+t)^4 needs a short horizon
        assert H * betas(f"(t/T)^{p}", H, False).sum() == pytest.approx(T / (p + 1))
        horizon = T / fast
        [beta] = simulation.parse_betas([f"(1+t)^{p}"], horizon, False)
        expected = ((1 + horizon) ** (p + 1) - 1) / (p + 1)
        assert beta.integral(horizon) == pytest.approx(expected)


def test_degree_0_is_constant_weights():
    for name in ("(t/T)^0", "(1+t)^0"):
        for equal in (True, False):
            np.testing.assert_allclose(betas(name, H, equal), 1, rtol=1e-12)


@pytest.mark.parametrize("name", ["(t/T)^1", "(1+t)^2"])
def test_in_the_integral_of_beta_tokens_move_at_the_speed_of_constant_weights(
    name, x64
):
    """Steps equal in time and steps equal in the integral agree, to first order in h.

    The second integrates dz/ds = softmax(beta^2 scores) z V at equal steps in s.
    """
    a, v, z_nd = (x.astype(float) for x in simulation.random_weights(3))
    [beta] = simulation.parse_betas([name], 2.0, True)
    gaps = []
    for num_steps in (100, 200, 400):
        h = 2.0 / num_steps
        in_t = simulation.simulate(
            simulation.attention_field(a, v),
            jnp.asarray(simulation.step_betas(beta, num_steps)),
            z_nd,
            h,
            simulation.on_sphere,
        )
        s_T = h * (np.arange(num_steps) + 0.5)
        grid = np.linspace(0, 2, 100_001)
        t_T = np.interp(s_T, beta.integral(grid), grid)
        shape_T = 2 * t_T / 2 if "T" in name else (1 + t_T) ** 2 * 3 / 13
        in_s = simulation.simulate(
            lambda b, z: jax.nn.softmax((z @ (b * a)) @ (z @ (b * a)).T) @ z @ v,
            jnp.asarray(shape_T),
            z_nd,
            h,
            simulation.on_sphere,
        )
        gaps.append(float(jnp.abs(in_t[-1] - in_s[-1]).max()))
    assert gaps[0] < 0.1
    assert gaps[0] / gaps[1] == pytest.approx(2, abs=0.3)
    assert gaps[1] / gaps[2] == pytest.approx(2, abs=0.2)


@pytest.mark.parametrize(
    "name, step_size, equal, answer",
    [
        ("(t/T)^4", 0.25, True, r"step_size \* \(t/T\)\^4 reaches 1.25, .* most 0.198"),
        ("(1+t)^4", 0.05, False, r"step_size \* \(1\+t\)\^4 reaches 732, .* a shorter"),
        ("(t/T)^0", 2.0, True, "reaches 2, .* at most 0.99"),
    ],
)
def test_steps_that_do_not_integrate_the_equation_are_refused(
    name, step_size, equal, answer
):
    with pytest.raises(UserError, match=f"--step_size={step_size:g}: .*{answer}") as e:
        betas(name, step_size, equal)
    if most := re.search("use at most ([0-9.e-]+)", str(e.value)):
        assert float(most[1]) * betas(name, float(most[1]), equal).max() <= 1


@pytest.mark.parametrize(
    "horizon, step_size, answer",
    [
        (10, 0, "--horizon=10 --step_size=0: expected 0 < step_size <= horizon"),
        (10, 11, "expected 0 < step_size <= horizon"),
        (10, float("nan"), "expected 0 < step_size <= horizon"),
        (float("inf"), 0.1, "expected 0 < step_size <= horizon"),
        (10, 1e-4, "--horizon=10 --step_size=0.0001: these are 1e.05 steps, but"),
    ],
)
def test_wrong_times_are_refused(horizon, step_size, answer):
    with pytest.raises(UserError, match=answer):
        simulation.count_steps([simulation.Beta("(t/T)^1", horizon, True)], step_size)


def test_the_steepest_polynomial_limits_the_step():
    both = simulation.parse_betas(["(t/T)^3", "(t/T)^4"], T, True)
    with pytest.raises(UserError, match=r"\(t/T\)\^4 reaches 1.47, .* most 0.198"):
        simulation.count_steps(both, 0.3)
    assert simulation.count_steps(both, 0.198) == 51


@pytest.mark.parametrize("names", [[], ["t^2"], ["(t/T)^10"], ["(1+t)^1"] * 2])
def test_other_polynomials_are_refused(names):
    with pytest.raises(UserError, match="--polynomials=.*: expected distinct powers"):
        simulation.parse_betas(names, T, True)


def test_states_that_overflow_are_refused():
    steps = betas("(t/T)^0", 0.5, horizon=500.0)
    with pytest.raises(UserError, match="--normalisation=none: the states overflow"):
        simulation.trajectories("random", steps, 0.5, "none", 4)


@pytest.mark.parametrize("normalisation", simulation.NORMALISATIONS)
def test_normalised_states(normalisation):
    states = simulation.trajectories("random", betas("(t/T)^2"), H, normalisation, 2)
    assert states.shape == (2, 201, 40, 3)
    if normalisation == "sphere":
        np.testing.assert_allclose(np.linalg.norm(states, axis=-1), 1, rtol=1e-5)
    elif normalisation == "standardise":
        np.testing.assert_allclose(states.mean(-1), 0, atol=1e-5)
        np.testing.assert_allclose(states.var(-1), 1, rtol=1e-4)
    else:
        np.testing.assert_array_equal(states[1, 0], simulation.random_weights(1)[2])


def test_identity_weights_gather_all_tokens_of_the_sphere_in_one_point():
    """Geshkovski et al. 2023, theorem 4.1 (d >= 3)."""
    for states in by_identity("(t/T)^0"):
        dispersion = clustering.dispersion(states)
        assert clustering.num_clusters(states)[0] > 10
        assert clustering.num_clusters(states)[-1] == 1
        assert dispersion[0] > 0.5 and dispersion[-1] < 1e-3
        assert (np.diff(dispersion) < 1e-6).all()


def test_growth_keeps_tokens_of_identity_weights_apart():
    """Sharper attention is attracted only by what is near."""
    energies = [
        interaction_energy(by_identity(f"(t/T)^{p}"))[:, -1].mean() for p in (1, 3, 9)
    ]
    assert energies[0] > energies[1] > energies[2]


def test_two_points_meet_as_their_equation_says(x64):
    """On the sphere, with u = cos of their angle: du/dt = 2 p (1 - u^2), p = softmax.

    Each is moved by p times the other, without what lies along itself.
    """
    u, h, n = 0.2, 1e-3, 500
    z_nd = jnp.array([[1, 0, 0], [u, np.sqrt(1 - u**2), 0]])
    field = simulation.attention_field(IDENTITY, IDENTITY)
    states = simulation.simulate(field, jnp.ones(n), z_nd, h, simulation.on_sphere)
    for _ in range(n):
        p = 1 / (1 + np.exp(1 - u))
        along = (1 - p) + p * u  # the part of the step that only lengthens
        u += h * 2 * p * (1 - u**2) / (1 + h * along)
    assert float(states[-1, 0] @ states[-1, 1]) == pytest.approx(u, abs=5e-4)


@pytest.mark.parametrize("sharpness", [1.0, 4.0])
def test_the_energy_increases_along_its_gradient_to_its_maximum(sharpness, x64):
    """Scores sharpness <z_i, z_j> and values z_j; with values -z_j it decreases.

    Sharp attention gathers tokens in a few groups first, which meet only much later.
    """
    a_dd = np.sqrt(sharpness) * jnp.eye(3)
    z_nd = simulation.random_weights(0)[2].astype(float)
    energies = {}
    for sign in (1, -1):
        field = simulation.attention_field(a_dd, sign * jnp.eye(3))
        states = simulation.simulate(
            field, jnp.ones(1000), z_nd, 0.02, simulation.on_sphere
        )
        energies[sign] = interaction_energy(states, sharpness)
    assert (np.diff(energies[1]) >= -1e-12).all()
    maximum = np.exp(sharpness) / (2 * sharpness)
    assert energies[1][0] < 0.7 * maximum
    assert energies[1][-1] <= maximum * (1 + 1e-12)
    if sharpness == 1:
        assert energies[1][-1] == pytest.approx(maximum, rel=1e-6)
    assert energies[-1][500] < energies[-1][0]
    assert (np.diff(energies[-1]) <= 1e-12).all()


def test_the_field_is_the_gradient_of_the_energy(x64):
    """On the sphere, up to the normaliser Z_i of softmax: n^2 / Z_i dE/dz_i."""
    sharpness, n = 2.5, 6
    z_nd = np.random.default_rng(0).normal(size=(n, 3))
    z_nd /= np.linalg.norm(z_nd, axis=-1, keepdims=True)
    field = simulation.attention_field(np.sqrt(sharpness) * IDENTITY, IDENTITY)
    moved = np.asarray(field(1.0, z_nd))
    tangent = moved - (moved * z_nd).sum(-1, keepdims=True) * z_nd
    z_norms = np.exp(sharpness * z_nd @ z_nd.T).sum(-1, keepdims=True)
    h, gradient = 1e-6, np.zeros((n, 3))
    for i in np.ndindex(n, 3):  # the energy sees directions only: along the tangent
        up, down = z_nd.copy(), z_nd.copy()
        up[i], down[i] = up[i] + h, down[i] - h
        up, down = (interaction_energy(z, sharpness) for z in (up, down))
        gradient[i] = (up - down) / (2 * h)
    np.testing.assert_allclose(n**2 / z_norms * gradient, tangent, atol=1e-7)


@pytest.mark.parametrize("norm, qk_norm", [("pre", False), ("none", True)])
def test_a_models_heads_move_tokens_as_its_attention_does(norm, qk_norm):
    """The second of two tokens sees all in the model too; without its biases."""
    stabilisers = Stabilisers(norm=norm)
    config = dataclasses.replace(TINY, stabilisers=stabilisers, qk_norm=qk_norm)
    model = LoadedModel("run", config, params_of(config), None, mesh_of())
    weights = model.weights_at(model.times(None))
    for unit in weights.values():
        if "bias" in unit:
            unit["bias"] = np.zeros_like(unit["bias"])
    z_nD = np.random.default_rng(0).normal(size=(2, 16)).astype("float32")
    products = spectra.products(config, weights)
    states = simulation.of_model(config, weights, products, z_nD)
    assert states.shape == (4, 2, 16)
    weights_S = {n: {k: v[:1] for k, v in u.items()} for n, u in weights.items()}
    weights_S["ff_out"] = {k: 0 * v for k, v in weights_S["ff_out"].items()}
    expected = jax.jit(step, static_argnums=0)(config, weights_S, z_nD)
    np.testing.assert_allclose(states[1, 1], expected[1], atol=1e-5)
