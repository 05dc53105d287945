import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TINY, params_of

from diffeq_former.config.model_validation import validate_model
from diffeq_former.errors import UserError
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.grid import default_grid
from diffeq_former.models.time_embedding import embed_times, features
from diffeq_former.models.transformer import Transformer
from diffeq_former.models.weight_specs import LinearSpec
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


@pytest.mark.parametrize("solver", ["euler", "lie_trotter"])
def test_as_many_steps_as_segments_compute_as_on_the_curve(solver):
    curve = dataclasses.replace(TINY, solver=solver)
    segments = dataclasses.replace(curve, time_segments=TINY.num_layers)
    params = params_of(curve)
    on_curve, on_segments = (table_of(c, params) for c in (curve, segments))
    jax.tree.map(np.testing.assert_array_equal, on_segments, on_curve)
    assert default_grid(segments).lengths_T is None
    finer = (table_of(c.at_depth(6), params) for c in (curve, segments))
    on_curve, on_segments = (table["ff_in"]["kernel"] for table in finer)
    assert np.abs(on_segments - on_curve).max() > 1e-2


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


@pytest.mark.parametrize("num_steps", [TINY.num_layers, 2 * TINY.num_layers])
def test_a_table_has_free_coefficients_on_each_segment(num_steps):
    L = TINY.num_layers
    config = dataclasses.replace(TINY, time_mlp="table", time_segments=L, base=False)
    params = params_of(config)
    weights = params["weights"]
    assert list(weights["time_mlp"]) == ["coefficients"]
    assert all("base" not in layer for layer in weights.values())
    rows = np.asarray(weights["time_mlp"]["coefficients"], np.float64)
    rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
    found = table_of(config.at_depth(num_steps), params)
    for number, (name, spec) in enumerate(BLOCKS["gpt"].weight_specs(config).items()):
        if not isinstance(spec, LinearSpec):
            continue
        of_segment = np.einsum("te,e...->t...", rows[number], weights[name]["bank"])
        kernels = np.asarray(found[name]["kernel"]).reshape(-1, *of_segment.shape[1:])
        unequal = np.any(
            kernels[1:] != kernels[:-1], axis=tuple(range(1, kernels.ndim))
        )
        assert unequal.sum() == L - 1
        first = np.concatenate([[True], unequal])
        np.testing.assert_allclose(kernels[first], of_segment, atol=1e-6)


def test_a_table_needs_segments():
    with pytest.raises(
        UserError, match="model.time_mlp: expected per_weight or shared"
    ):
        validate_model(dataclasses.replace(TINY, time_mlp="table"))
