"""Spectra against closed forms and the dense eigenproblem."""

import dataclasses

import jax
import numpy as np
import pytest
from cases import TINY, mesh_of, params_of

from diffeq_former.analysis.loaded_model import LoadedModel
from diffeq_former.analysis.spectra import (
    bands,
    eigenvalues,
    positive_share,
    products,
    signed_sum,
    singular_values,
)

RANDOM = np.random.default_rng(0)


def factors_of(matrix_DD):
    """A product that is this matrix, by a basis of its range."""
    left, values, right = np.linalg.svd(matrix_DD)
    rank = (values > 1e-12).sum()
    return left[:, :rank] * values[:rank], right[:rank]


def by_size(values):
    return np.array(sorted(values, key=lambda v: (-round(abs(v), 9), v.imag)))


def test_a_rotation_gives_its_conjugate_pair():
    angle, scale = 0.7, 1.5
    turn = scale * np.array(
        [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    )
    matrix = np.zeros((6, 6))
    matrix[2:4, 2:4] = turn
    found = eigenvalues(factors_of(matrix))
    expected = scale * np.exp([-1j * angle, 1j * angle])
    np.testing.assert_allclose(by_size(found), expected, rtol=1e-12)
    np.testing.assert_allclose(singular_values(factors_of(matrix)), scale)
    assert positive_share(found) == 1
    np.testing.assert_allclose(
        by_size(eigenvalues((-turn, np.eye(2)))), -expected[::-1]
    )
    assert positive_share(eigenvalues((-turn, np.eye(2)))) == 0


def test_a_projector_gives_its_zero_and_one():
    """Of its own factors: one; of factors that are wider: zeros as well."""
    v = RANDOM.normal(size=(5, 1))
    v /= np.linalg.norm(v)
    np.testing.assert_allclose(eigenvalues((v, v.T)), [1], rtol=1e-12)
    found = eigenvalues((v @ v.T, np.eye(5)))
    np.testing.assert_allclose(found, [1, 0, 0, 0, 0], atol=1e-12)


@pytest.mark.parametrize("R", [3, 7, 12])
def test_small_problems_are_the_dense_one(R):
    """Of narrow, square and wide factors, in a batch."""
    a, b = RANDOM.normal(size=(9, 7, R)), RANDOM.normal(size=(9, R, 7))
    values, singular = eigenvalues((a, b)), singular_values((a, b))
    for i in range(9):
        dense, kept = np.linalg.eigvals(a[i] @ b[i]), min(R, 7)
        np.testing.assert_allclose(
            by_size(values[i]), by_size(dense)[:kept], rtol=1e-9, atol=1e-12
        )
        expected = np.linalg.svd(a[i] @ b[i], compute_uv=False)[:kept]
        np.testing.assert_allclose(singular[i], expected, rtol=1e-9)
    assert (np.diff(np.abs(values)) <= 1e-12).all()
    assert np.abs(values.imag).max() > 0.1


def test_the_signed_sum_of_copies_opposites_and_turns():
    """+1, -1 and 0; of one eigenvalue 1 and three of -2: -5 / 7; of none, 0."""
    quarter = np.array([[0.0, -1], [1, 0]])
    for matrix, expected in (
        (np.eye(4), 1),
        (-3 * np.eye(4), -1),
        (quarter, 0),
        (np.diag([1.0, -2, -2, -2]), -5 / 7),
        (np.zeros((2, 2)), 0),
    ):
        found = signed_sum(eigenvalues((matrix, np.eye(len(matrix)))))
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_bands_are_percentiles_over_all_heads():
    values = np.arange(2 * 3 * 5).reshape(2, 3, 5)
    low, *_, median, _, _, high = bands(values)
    np.testing.assert_array_equal([low, median, high], [[0, 15], [7, 22], [14, 29]])


def trained(**changes):
    model = dataclasses.replace(TINY, **changes)
    return LoadedModel("run", model, params_of(model), None, mesh_of())


@pytest.fixture(params=["gpt", "llama"])
def model(request):
    heads = {"num_heads": 4, "num_kv_heads": 2} if request.param == "llama" else {}
    return trained(block=request.param, **heads)


def test_products_are_those_of_the_blocks_weights(model):
    """By einsums over the block's own kernels, head by head."""
    c, times = model.config, model.times(5)
    weights = model.weights_at(times)
    found = {name: a @ b for name, (a, b) in products(c, weights).items()}
    kernel = {
        name: unit["kernel"] for name, unit in weights.items() if "kernel" in unit
    }
    for t in range(5):
        for n in range(c.num_heads):
            if c.block == "gpt":
                q, k, v = (kernel["qkv"][t, :, i, n] for i in range(3))
            else:
                q, shared = kernel["query"][t, :, n], n // 2
                k, v = kernel["key"][t, :, shared], kernel["value"][t, :, shared]
            expected = np.einsum("dh,eh->de", q, k) / np.sqrt(c.d_model / c.num_heads)
            np.testing.assert_allclose(found["qk"][t, n], expected, atol=1e-6)
            expected = np.einsum("dh,he->de", v, kernel["attention_out"][t, n])
            np.testing.assert_allclose(found["ov"][t, n], expected, atol=1e-6)
        first, second = ("ff_in", "ff_out") if c.block == "gpt" else ("up", "down")
        expected = kernel[first][t] @ kernel[second][t]
        np.testing.assert_allclose(found["ff"][t], expected, atol=1e-5)


def test_spectra_do_not_depend_on_the_basis_of_a_head(model):
    """Q M and K M^-T are the same head, and so are V M and M^-1 O."""
    for a, b in products(model.config, model.weights_at(model.times(2))).values():
        basis = np.eye(a.shape[-1]) + 0.2 * RANDOM.normal(size=(a.shape[-1],) * 2)
        changed = a @ basis, np.linalg.inv(basis) @ b
        for spectrum in (eigenvalues, singular_values):
            old, new = spectrum((a, b)), spectrum(changed)
            flat = [s.reshape(-1, s.shape[-1]) for s in (old, new)]
            for one, other in zip(*flat, strict=True):
                np.testing.assert_allclose(
                    by_size(one), by_size(other), rtol=1e-6, atol=1e-9
                )


@pytest.mark.parametrize("solver", ["euler", "strang"])
def test_times_of_as_many_steps_as_layers_are_those_of_the_model(solver):
    model = trained(solver=solver)
    weights = model.weights_at(model.times(None))
    for name in model.table:
        for key, own_TS in model.table[name].items():
            np.testing.assert_array_equal(weights[name][key], own_TS[:, 0])


def test_a_layer_table_is_constant_on_its_layers():
    model = trained(weights="layer_table", solver="lie_trotter")
    assert len(model.times(None)) == len(model.times(3)) == 3
    times_T = np.array([0, 0.2, 1 / 3, 0.34, 2 / 3, 0.9, 1], "f4")
    found, own = model.weights_at(times_T), model.weights_at(model.times(None))
    jax.tree.map(
        lambda x, w: np.testing.assert_array_equal(x, w[[0, 0, 0, 1, 1, 2, 2]]),
        found,
        own,
    )
