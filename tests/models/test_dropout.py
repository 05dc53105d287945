"""Masks of dropout and noise over depth: distribution, independence, and gradients.

Bounds are five standard deviations of what is expected of independent bits.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TINY, params_of, tokens_of

from diffeq_former.models.dropout import Dropout, Noise
from diffeq_former.models.transformer import Transformer

SHAPE = (64, 128, 32)


def dropped(x, seed: int = 0, rate: float = 0.3, first: int = 0):
    sequences_B = first + jnp.arange(len(x))
    rngs = {"dropout": jax.random.key(seed)}
    return Dropout(rate).apply({}, x, sequences_B, rngs=rngs)


def masks(seed: int = 0, rate: float = 0.5, shape=SHAPE, first: int = 0) -> np.ndarray:
    return np.asarray(dropped(jnp.ones(shape), seed, rate, first) > 0)


def assert_independent(a: np.ndarray, b: np.ndarray):
    """Check that bits that are 1 with probability 1/2 are uncorrelated."""
    products = (2.0 * a - 1) * (2.0 * b - 1)
    assert abs(products.mean()) < 5 / np.sqrt(products.size)


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_rates(rate):
    kept = masks(rate=rate)
    spread = 5 * np.sqrt(rate * (1 - rate) / kept.size)
    assert kept.mean() == pytest.approx(1 - rate, abs=spread)
    own = kept.mean((1, 2))  # of every sequence
    assert np.abs(own - (1 - rate)).max() < spread * np.sqrt(len(own))
    values = np.unique(dropped(jnp.full(SHAPE, 2.0), rate=rate))
    np.testing.assert_allclose(values, [0, 2 / (1 - rate)], rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("distance", [1, 2, 3, 16])
def test_places_are_independent(axis, distance):
    kept = np.moveaxis(masks(), axis, 0)
    assert_independent(kept[distance:], kept[:-distance])


def test_corners_of_rectangles_are_independent():
    """With a hash that mixes badly, an even number of the four is kept too often."""
    signs = 2.0 * masks() - 1
    for i, j in [(1, 1), (2, 2), (1, 16), (64, 8)]:
        products = (
            signs[:, i:, j:]
            * signs[:, :-i, j:]
            * signs[:, i:, :-j]
            * signs[:, :-i, :-j]
        )
        assert abs(products.mean()) < 5 / np.sqrt(products.size)


def test_keys_are_independent():
    for seed in range(1, 5):
        assert_independent(masks(seed), masks(0))


def test_a_sequence_has_its_own_mask():
    whole, part = masks(), masks(shape=(8, *SHAPE[1:]), first=16)
    np.testing.assert_array_equal(part, whole[16:24])


def test_the_gradient_has_the_same_mask():
    x = jnp.asarray(np.random.default_rng(0).normal(size=SHAPE), jnp.float32)
    found = jax.grad(lambda x: dropped(x).sum())(x)
    np.testing.assert_array_equal(found > 0, dropped(x) != 0)


def noise(seed: int = 0, stddev: float = 2.0, shape=SHAPE, first: int = 0):
    sequences_B = first + jnp.arange(shape[0])
    rngs = {"dropout": jax.random.key(seed)}
    return np.asarray(Noise(stddev).apply({}, jnp.zeros(shape), sequences_B, rngs=rngs))


def test_noise_is_normally_distributed():
    """Its moments, and how often it exceeds 1, 2 and 3 standard deviations."""
    x = noise() / 2.0
    assert abs(x.mean()) < 5 / np.sqrt(x.size)
    for power, expected in ((2, 1), (4, 3)):
        assert (x**power).mean() == pytest.approx(expected, rel=0.05)
    for limit, expected in ((1, 0.31731), (2, 0.04550), (3, 0.00270)):
        assert (np.abs(x) > limit).mean() == pytest.approx(expected, rel=0.1)


def test_noise_is_independent_and_of_its_sequence():
    x = noise()
    assert_independent(x[1:] > 0, x[:-1] > 0)
    assert_independent(x > 0, noise(seed=1) > 0)
    np.testing.assert_array_equal(noise(shape=(8, *SHAPE[1:]), first=16), x[16:24])


@pytest.mark.parametrize("num_steps", [2, 8])
def test_the_noise_of_steps_adds_up_to_that_of_depth(num_steps):
    """Brownian motion: without terms, the variance over all steps does not depend on
    their number. And evaluation has none."""
    config = dataclasses.replace(TINY, num_layers=num_steps, horizon=1.0)
    config = dataclasses.replace(config, depth_noise=0.5, d_model=64, max_len=64)
    zeros = jax.tree.map(jnp.zeros_like, params_of(config))
    tokens_BL = tokens_of(config, batch=16)

    def last_state(train: bool):
        _, sown = Transformer(config, train=train).apply(
            {"params": zeros},
            tokens_BL,
            rngs={"dropout": jax.random.key(0)},
            mutable=["intermediates"],
        )
        return np.asarray(sown["intermediates"]["depth"]["state"][0][-1])

    assert last_state(train=True).std() == pytest.approx(0.5, rel=0.02)
    assert (last_state(train=False) == 0).all()
