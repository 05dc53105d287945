"""Maxima on a ball that are known, and attacks on a tiny model."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import mesh_of, params_of
from runs import TINY

from diffeq_former.analysis import depth, lyapunov
from diffeq_former.analysis.adversarial import RADII, ascend, attack, one_step
from diffeq_former.analysis.loaded_model import LoadedModel
from diffeq_former.models.loss import NO_TARGET

RANDOM = np.random.default_rng(0)


def test_a_linear_function_is_largest_along_its_gradient(x64):
    slope, start = RANDOM.normal(size=(2, 3, 5))
    for radius in (0.0, 1e-3, 7.0):
        value = lambda x: (slope * x).sum()  # noqa: E731
        for found in (
            one_step(value, jnp.asarray(start), radius),
            ascend(value, jnp.asarray(start), radius, 10),
        ):
            largest = radius * np.linalg.norm(slope)
            assert (slope * found).sum() == pytest.approx(largest, rel=1e-12)
            assert np.linalg.norm(found) == pytest.approx(radius, rel=1e-12)


def test_the_ascent_nearly_reaches_the_maximum_of_a_quadratic_function(x64):
    """max b x + x A x / 2 on |x| = r: (m - A) x = b with m above all eigenvalues."""
    rates, slope, radius = np.array([2.0, 0.5, -1.0]), np.array([1.0, 1.5, 0.5]), 1.5

    def value(x):
        return slope @ x + (rates * x * x).sum() / 2

    low, high = rates.max(), rates.max() + np.linalg.norm(slope) / radius
    for _ in range(100):
        multiplier = (low + high) / 2
        inside = np.linalg.norm(slope / (multiplier - rates)) < radius
        low, high = (low, multiplier) if inside else (multiplier, high)
    largest = value(slope / (multiplier - rates))
    found = ascend(value, jnp.zeros(3), radius, 10)
    first = value(one_step(value, jnp.zeros(3), radius))
    assert np.linalg.norm(found) == pytest.approx(radius)
    assert first + 0.9 * (largest - first) < value(found) <= largest + 1e-9


def test_nothing_is_gained_at_a_maximum_or_by_a_radius_of_zero():
    top = jnp.array([1.0, -2.0])
    peak = lambda x: -jnp.square(x - top).sum()  # noqa: E731
    assert (np.asarray(ascend(peak, top, 1.0, 10)) == 0).all()
    assert (np.asarray(ascend(peak, 3 * top, 0.0, 10)) == 0).all()


@functools.cache
def attacked():
    """A model, the ids of 5 tokens, their states in 11 of padding, and attacks on them.

    The shapes are those of test_kinds.py, to share its programs.
    """
    config = dataclasses.replace(TINY.model, vocab_size=258)
    params = params_of(config, stddev=0.3)
    model = LoadedModel("run", config, params, None, mesh_of())
    ids_L = np.random.default_rng(0).integers(256, size=16)
    targets_L = np.array([*ids_L[1:5], *[NO_TARGET] * 12])
    c, outer, table = model.config, model.outer, model.table
    x_LD = depth.embed(c, outer, ids_L)
    states_TLD = depth.states(c, table, x_LD)
    found = attack(c, outer, table, x_LD, targets_L, jnp.array(RADII))
    return model, ids_L[:5], states_TLD, found


def test_a_small_step_gains_its_length_times_the_gradients_norm():
    """Of the loss of 5 tokens without padding, by the first four embeddings."""
    model, ids_L, states_TLD, found = attacked()
    c, outer, x_LD = model.config, model.outer, np.asarray(states_TLD[0, :5])

    def loss(x_LD):
        logits_LV = depth.logits(c, outer, depth.states(c, model.table, x_LD)[-1])
        losses_L = optax.softmax_cross_entropy_with_integer_labels(
            logits_LV[:4], ids_L[1:]
        )
        return losses_L.mean()

    gradient_LD = np.asarray(jax.jit(jax.grad(loss))(x_LD))
    length = RADII[0] * np.linalg.norm(x_LD[:4])
    expected = length * np.linalg.norm(gradient_LD)
    assert found["one_step"]["change"][0] == pytest.approx(expected, rel=0.02)


def test_the_ascent_is_at_least_one_step_and_both_beat_random_directions():
    *_, found = attacked()
    ascent, one_step, random = (
        np.asarray(found[name]["change"]) for name in ("ascent", "one_step", "random")
    )
    assert (ascent >= one_step).all() and (one_step > 2 * random).all()
    assert ascent[-1] > 1.01 * one_step[-1]


def test_no_small_perturbation_grows_faster_than_the_leading_exponent():
    model, _, states_TLD, found = attacked()
    along = (model.config, model.table, states_TLD, 4)
    [exponent] = lyapunov.coupled(*along, "whole", 1)
    rates = [float(method["growth"][0]) for method in found.values()]
    assert max(rates) <= exponent + 0.01
    assert found["ascent"]["growth"][0] > found["random"]["growth"][0]
