import numpy as np
import pytest

from diffeq_former.analysis.statistics import interval, rank_correlation


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


def test_rank_correlation_is_that_of_the_order():
    assert rank_correlation([1, 2, 3], [1, 10, 1000]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, -7]) == pytest.approx(-1)
    # With ties, by hand: ranks (0, 1.5, 1.5, 3) and (0, 1, 2, 3).
    found = rank_correlation([1, 5, 5, 9], [1, 2, 3, 4])
    assert found == pytest.approx(4.5 / np.sqrt(4.5 * 5))
    assert np.isnan(rank_correlation([1, 1, 1], [1, 2, 3]))
