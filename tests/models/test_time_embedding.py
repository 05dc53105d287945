import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TINY, params_of

from diffeq_former.models import coefficient_ode
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.time_embedding import embed_times, features
from diffeq_former.models.transformer import Transformer
from diffeq_former.ode.grid import stage_times

TIMES = stage_times(24, (1.0,))[:, 0]


def test_features_against_float64():
    w = 10000.0 ** (-np.arange(128) / 128)
    angles = 1000.0 * np.asarray(TIMES, np.float64)[:, None] * w
    exact = np.concatenate(
        [np.asarray(TIMES)[:, None], np.sin(angles), np.cos(angles)], 1
    )
    phi = features(TIMES, 128, 1000.0)
    assert phi.shape == (24, 257)
    # The angle reaches 1000, where float32 numbers are 6e-5 apart.
    np.testing.assert_allclose(phi, exact, rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_time_is_float32_whatever_the_compute_dtype(dtype):
    config = dataclasses.replace(TINY, dtype=dtype)
    mlps = params_of(config)["weights"]["time_mlp"]
    embed = jax.jit(embed_times, static_argnums=0)
    u_MTE = embed(config, mlps, TIMES)
    assert u_MTE.dtype == jnp.float32
    np.testing.assert_array_equal(u_MTE, embed(TINY, mlps, TIMES))


def test_unit_initialisation_normalises_u():
    mlps = params_of(TINY)["weights"]["time_mlp"]
    embed = jax.jit(embed_times, static_argnums=0)
    lengths = np.linalg.norm(embed(TINY, mlps, TIMES), axis=-1)
    np.testing.assert_allclose(lengths, np.ones_like(lengths), rtol=1e-5)


def table_of(config, params):
    apply = jax.jit(Transformer(config).apply, static_argnames="method")
    return apply({"params": params}, method="tabulate")


def test_shared_mlp_is_the_case_of_equal_mlps():
    each, one = (
        dataclasses.replace(TINY, time_mlp=m) for m in ("per_weight", "shared")
    )
    params = params_of(one)
    expected = table_of(one, params)
    num_units = len(params["weights"]) - 1
    repeated = jax.tree.map(
        lambda x: np.repeat(x, num_units, 0), params["weights"]["time_mlp"]
    )
    params["weights"] = params["weights"] | {"time_mlp": repeated}
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6),
        table_of(each, params),
        expected,
    )


def test_a_table_has_free_coefficients_at_layers_and_means_between_them():
    config = dataclasses.replace(TINY, time_mlp="table", base=False)
    params, L = params_of(config), TINY.num_layers
    weights = params["weights"]
    assert list(weights["time_mlp"]) == ["coefficients"]
    assert all("base" not in layer for layer in weights.values())
    rows = np.asarray(weights["time_mlp"]["coefficients"], np.float64)
    first, second, third = rows.swapaxes(0, 1)
    between = first / 4 + 3 * second / 4, second / 2 + third / 2
    expected_MTE = np.stack([first, first, *between], axis=1)
    times_T = np.array([1 / 12, 1 / L, 7 / 12, 10 / 12], np.float32)
    found = embed_times(config, weights["time_mlp"], times_T)
    lengths = np.linalg.norm(expected_MTE, axis=-1, keepdims=True)
    np.testing.assert_allclose(found, expected_MTE / lengths, atol=1e-6)
    kernels = table_of(config, params)["ff_in"]["kernel"][:, 0]
    number = list(BLOCKS["gpt"].weight_specs(config)).index("ff_in")
    u_LE = rows[number] / np.linalg.norm(rows[number], axis=-1, keepdims=True)
    of_layers = np.tensordot(u_LE, np.asarray(weights["ff_in"]["bank"]), 1)
    np.testing.assert_allclose(kernels, of_layers, atol=1e-6)


def rotating(E: int = 4, time_scale: float = 3.0):
    """An ODE of its own for u(t), its parameters, and du/dt in float64."""
    config = dataclasses.replace(
        TINY, time_mlp="ode", time_embed_dim=E, time_scale=time_scale
    )
    ode = params_of(config)["weights"]["time_mlp"]
    K, G, g = (
        np.asarray(ode[name], np.float64) for name in ("kernel_2", "kernel_1", "bias_1")
    )

    def slope(t, u_ME):
        inputs = np.concatenate([u_ME, np.full((len(u_ME), 1), t)], axis=1)
        D = 1 + np.tanh(np.einsum("mi,mie->me", inputs, G) + g)
        return D * np.einsum("me,mef->mf", D * u_ME, K - K.swapaxes(1, 2))

    return config, ode, slope


def test_an_ode_of_u_against_float64():
    """In small steps of Euler's midpoint rule, at times on and off its own steps."""
    config, ode, slope = rotating()
    times_T = np.array([0.0, 0.125, 0.4, 1 / 3, 1.0], np.float32)
    found = np.asarray(
        jax.jit(coefficient_ode.solve, static_argnums=2)(
            ode, times_T, config.time_scale
        )
    )
    for i, end in enumerate(times_T):
        u_ME, h = np.asarray(ode["initial"], np.float64), end / 400
        for n in range(400):
            middle = u_ME + h / 2 * slope(n * h, u_ME)
            u_ME = u_ME + h * slope((n + 0.5) * h, middle)
        np.testing.assert_allclose(found[:, i], u_ME, rtol=0, atol=2e-3)
    lengths = np.linalg.norm(found, axis=-1)
    np.testing.assert_allclose(lengths, lengths[:, :1] * np.ones(5), rtol=5e-3)
    assert np.abs(found[:, 0] - found[:, -1]).max() > 0.1


def test_an_ode_of_u_is_smooth_between_its_steps():
    """Slopes by differences are those of the ODE: right and left of its steps, too."""
    config, ode, slope = rotating()
    times_T, d = np.array([0.05, 0.2, 0.5, 0.77]), 1e-3
    solve = jax.jit(coefficient_ode.solve, static_argnums=2)
    at, left, right = (
        np.asarray(solve(ode, np.float32(t), config.time_scale), np.float64)
        for t in (times_T, times_T - d, times_T + d)
    )
    for i, t in enumerate(times_T):
        measured = (right[:, i] - left[:, i]) / (2 * d)
        np.testing.assert_allclose(measured, slope(t, at[:, i]), rtol=0, atol=2e-2)
