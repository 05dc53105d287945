"""Choosing a token, against numpy and against the wanted frequencies."""

import jax
import numpy as np
import pytest

from diffeq_former.errors import UserError
from diffeq_former.inference.sampling import (
    Rule,
    Sampling,
    keep_most_likely,
    probabilities,
    sample,
)

V = 12


@pytest.fixture(scope="module")
def logits_BV():
    return np.random.default_rng(0).normal(0, 2, (5, V)).astype(np.float32)


def softmax(logits_V):
    weights_V = np.exp(logits_V.astype(np.float64) - logits_V.max())
    return weights_V / weights_V.sum()


def fewest_with_mass(logits_V, p):
    """By trying every number of the most likely tokens."""
    p_V = softmax(logits_V)
    order = sorted(range(len(p_V)), key=lambda v: -p_V[v])
    for count in range(1, len(order) + 1):
        if p_V[order[:count]].sum() >= p:
            return set(order[:count])
    raise AssertionError


def kept(logits_BV):
    return [set(np.flatnonzero(np.isfinite(row_V))) for row_V in logits_BV]


jitted = jax.jit(keep_most_likely, static_argnums=3)


@pytest.mark.parametrize(
    ("k", "num_sorted"), [(1, 1), (1, 4), (3, 4), (4, 4), (3, V), (V, V), (V + 5, 64)]
)
def test_top_k_keeps_the_k_most_likely(logits_BV, k, num_sorted):
    ours_BV = np.asarray(jitted(logits_BV, k, 1.0, num_sorted))
    expected = [set(np.argsort(-row_V)[:k]) for row_V in logits_BV]
    assert kept(ours_BV) == expected
    finite_BV = np.isfinite(ours_BV)
    np.testing.assert_array_equal(ours_BV[finite_BV], logits_BV[finite_BV])


@pytest.mark.parametrize("num_sorted", [4, 8, V])
def test_top_k_keeps_k_of_equal_logits(num_sorted):
    zeros_BV = np.zeros((2, V), np.float32)
    assert kept(jitted(zeros_BV, 4, 1.0, num_sorted)) == [{0, 1, 2, 3}] * 2


def test_without_a_limit_improbable_tokens_are_kept():
    """Although the others' probabilities add up to 1 in float32."""
    logits_BV = np.array([[0, -30, -40, -50]], np.float32)
    assert kept(jitted(logits_BV, 3, 1.0, 4)) == [{0, 1, 2}]


@pytest.mark.parametrize("p", [1e-6, 0.3, 0.6, 0.9, 0.999])
def test_top_p_keeps_the_fewest_tokens_with_that_mass(logits_BV, p):
    ours_BV = np.asarray(jitted(logits_BV, V, p, V))
    assert kept(ours_BV) == [fewest_with_mass(row_V, p) for row_V in logits_BV]
    finite_BV = np.isfinite(ours_BV)
    np.testing.assert_array_equal(ours_BV[finite_BV], logits_BV[finite_BV])


def test_top_p_stops_where_the_mass_is_reached():
    """Masses that float32 adds up without error: 1/2, 1/4, 1/8, 1/8."""
    logits_BV = np.log(np.array([[0.125, 0.5, 0.125, 0.25]], np.float32))
    assert kept(jitted(logits_BV, V, 0.5, V)) == [{1}]
    assert kept(jitted(logits_BV, V, 0.51, V)) == [{1, 3}]


DRAWS = 40_000
LOGITS_BV = np.log(np.tile(np.array([[0.4, 0.3, 0.2, 0.1]], np.float32), (DRAWS, 1)))


@jax.jit
def draw(key, logits_BV, rule):
    """A token for each row, and the probabilities that it is drawn with."""
    keys_B = jax.random.split(key, DRAWS)
    return sample(keys_B, logits_BV, rule), probabilities(logits_BV[:1], rule)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), [0.4, 0.3, 0.2, 0.1]),
        (Sampling(temperature=0.5), [16 / 30, 9 / 30, 4 / 30, 1 / 30]),
        (Sampling(top_k=2), [4 / 7, 3 / 7, 0, 0]),
        (Sampling(top_p=0.75), [4 / 9, 3 / 9, 2 / 9, 0]),
        (Sampling(top_k=3, top_p=0.75), [4 / 7, 3 / 7, 0, 0]),  # of 9/9, 7/9 suffice
        (Sampling(min_p=0.6), [4 / 7, 3 / 7, 0, 0]),
        (Sampling(min_p=1.0), [1, 0, 0, 0]),
        (Sampling(temperature=0.5, min_p=0.3), [16 / 25, 9 / 25, 0, 0]),
        # The nucleus is that of all tokens, of which 0.4 + 0.3 are too few.
        (Sampling(top_p=0.75, min_p=0.4), [4 / 9, 3 / 9, 2 / 9, 0]),
        (Sampling(temperature=0), [1, 0, 0, 0]),
        (Sampling(temperature=1e-30), [1, 0, 0, 0]),
        (Sampling(temperature=1e-300), [1, 0, 0, 0]),  # zero in float32
        (Sampling(top_p=1e-300), [1, 0, 0, 0]),
        (Sampling(top_k=1), [1, 0, 0, 0]),
        (Sampling(top_k=2**40), [0.4, 0.3, 0.2, 0.1]),  # no int32
    ],
    ids=str,
)
def test_frequencies(sampling, expected):
    tokens_B, [wanted_V] = draw(jax.random.key(1), LOGITS_BV, Rule.of([sampling]))
    assert tokens_B.dtype == np.int32
    np.testing.assert_allclose(wanted_V, expected, rtol=0, atol=1e-6)
    frequencies = np.bincount(tokens_B, minlength=4) / DRAWS
    deviation = np.sqrt(np.array(expected) * (1 - np.array(expected)) / DRAWS)
    assert (np.abs(frequencies - expected) <= 4 * deviation).all()


def test_a_program_serves_all_numbers_of_a_kind():
    """Rows of one call have each their own numbers."""
    numbers = ((0.5, 4, 0.99, 0.1), (1.0, 3, 1.0, 0.0), (2.0, 2, 0.5, 0.9))
    samplings = [Sampling(*row) for row in numbers]
    logits_BV = LOGITS_BV[:3]
    program = jax.jit(lambda *arguments: probabilities(*arguments))
    together_BV = program(logits_BV, Rule.of(samplings))
    for sampling, p_V in zip(samplings, together_BV, strict=True):
        alone_BV = program(logits_BV, Rule.of([sampling] * 3))
        np.testing.assert_array_equal(alone_BV, np.tile(p_V, (3, 1)))
    assert program._cache_size() == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": -0.1}, "temperature: expected 0 (greedy) or more, got -0.1"),
        ({"temperature": float("nan")}, "temperature: expected 0 (greedy) or more"),
        ({"temperature": float("inf")}, "temperature: expected 0 (greedy) or more"),
        ({"top_k": -1}, "top_k: expected 0 (all tokens) or more, got -1"),
        ({"top_p": 0.0}, "top_p: expected 0 < top_p <= 1, got 0.0"),
        ({"top_p": 1.5}, "top_p: expected 0 < top_p <= 1, got 1.5"),
        ({"min_p": -0.1}, "min_p: expected 0 <= min_p <= 1, got -0.1"),
        ({"min_p": float("nan")}, "min_p: expected 0 <= min_p <= 1, got nan"),
        ({"presence_penalty": -2.1}, "presence_penalty: expected -2 to 2, got -2.1"),
        ({"frequency_penalty": 3}, "frequency_penalty: expected -2 to 2, got 3"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty: expected -2 to 2"),
        ({"top_p": float("nan")}, "top_p: expected 0 < top_p <= 1"),
    ],
    ids=str,
)
def test_values_outside_their_range(wrong, message):
    with pytest.raises(UserError) as raised:
        Sampling(**wrong)
    assert message in str(raised.value)
