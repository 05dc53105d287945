import math

import numpy as np
import pytest

from diffeq_former.analysis.statistics import (
    correlation_interval,
    interval,
    paired_difference,
    proportion,
    rank_correlation,
)


def test_the_interval_covers_as_often_as_it_says():
    """Of 300 samples of 40 draws, the mean 1 lies inside in about 95 of 100."""
    draws = np.random.default_rng(0).exponential(size=(300, 40))
    found = [interval(sample) for sample in draws]
    share = np.mean([f["low"] < 1 < f["high"] for f in found])
    assert 0.89 < share < 0.98
    assert found[0]["mean"] == pytest.approx(draws[0].mean())
    assert found[0]["count"] == 40


def test_one_value_has_no_interval():
    one = {"mean": 3.0, "low": None, "high": None, "count": 1}
    assert interval([3.0]) == interval([3.0, np.nan]) == one
    assert interval([])["mean"] is None


def test_paired_differences_by_closed_forms_of_students_t():
    """With 2 degrees of freedom P(T < t) = 1/2 + t / (2 sqrt(2 + t^2)); 1: atan."""
    found = paired_difference([4.0, 5.0, 6.5], [4.1, 5.3, 6.7])
    # Differences of -0.1, -0.3, -0.2: a mean of -0.2, a standard error of 0.1 / sqrt 3.
    t = 0.2 * math.sqrt(3) / 0.1
    half = 4.302653 * 0.1 / math.sqrt(3)
    assert found == {
        "mean": pytest.approx(-0.2),
        "low": pytest.approx(-0.2 - half),
        "high": pytest.approx(-0.2 + half),
        "p_value": pytest.approx(1 - t / math.sqrt(2 + t**2)),
        "count": 3,
    }
    two = paired_difference([1.0, 3.0], [0.0, 0.0])  # a mean of 2, an error of 1
    assert two["high"] == pytest.approx(2 + 12.7062, rel=1e-5)
    assert two["p_value"] == pytest.approx(1 - 2 * math.atan(2) / math.pi)


def test_paired_differences_without_spread():
    assert paired_difference([2.0, 3.0], [1.0, 2.0])["p_value"] == 0
    assert paired_difference([2.0, 3.0], [2.0, 3.0])["p_value"] == 1
    one = {"mean": 1.0, "low": None, "high": None, "p_value": None, "count": 1}
    assert paired_difference([3.0], [2.0]) == one


@pytest.mark.parametrize("successes, count", [(0, 36), (7, 20), (5, 5)])
def test_the_bounds_of_a_proportion_are_1_96_deviations_from_it(successes, count):
    """The deviations are those of binomials whose probability is the bound."""
    found = proportion([1] * successes + [0] * (count - successes))
    assert found["mean"] == successes / count and found["count"] == count
    for bound in (found["low"], found["high"]):
        deviation = np.sqrt(bound * (1 - bound) / count)
        distance = abs(bound - found["mean"])
        assert distance == pytest.approx(1.959964 * deviation, abs=1e-9)
    assert found["high"] - found["low"] > 0.09


def test_rank_correlation_is_that_of_the_order():
    assert rank_correlation([1, 2, 3], [1, 10, 1000]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, -7]) == pytest.approx(-1)
    # With ties, by hand: ranks (0, 1.5, 1.5, 3) and (0, 1, 2, 3).
    found = rank_correlation([1, 5, 5, 9], [1, 2, 3, 4])
    assert found == pytest.approx(4.5 / np.sqrt(4.5 * 5))
    assert np.isnan(rank_correlation([1, 1, 1], [1, 2, 3]))


def test_the_interval_of_a_correlation_is_that_of_fisher():
    """Of normal pairs, by Fisher's z with the variance of Bonett and Wright (2000)."""
    x, noise = np.random.default_rng(0).normal(size=(2, 150))
    found = correlation_interval(x, 0.6 * x + 0.8 * noise)
    r = found["rank_correlation"]
    half = 1.96 * np.sqrt((1 + r**2 / 2) / (len(x) - 3))
    expected = np.tanh(np.arctanh(r) + np.array([-half, half]))
    np.testing.assert_allclose([found["low"], found["high"]], expected, atol=0.04)
    assert 0.4 < r < 0.7 and expected[1] - expected[0] > 0.15


def test_a_constant_has_no_correlation():
    found = correlation_interval([1, 1, 1], [1, 2, 3])
    assert found == {"rank_correlation": None, "low": None, "high": None, "count": 3}
