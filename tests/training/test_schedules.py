import numpy as np
import pytest

from diffeq_former.config import OptimizerConfig, resolve
from diffeq_former.errors import UserError
from diffeq_former.training.optimizer import make_schedule

PEAK, STEPS = 2.0, 100


def rates(**fields) -> np.ndarray:
    settings = {"warmup_fraction": 0.1, "final_fraction": 0.1} | fields
    c = OptimizerConfig(learning_rate=PEAK, **settings)
    schedule = make_schedule(c, STEPS)
    return np.array([schedule(step) for step in range(STEPS + 1)])


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "wsd"])
def test_warm_up_is_linear_from_0_to_the_peak(schedule):
    expected = PEAK * np.arange(11) / 10
    np.testing.assert_allclose(rates(schedule=schedule)[:11], expected, rtol=1e-6)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "wsd"])
def test_without_warm_up_the_peak_comes_first(schedule):
    assert rates(schedule=schedule, warmup_fraction=0.0)[0] == PEAK


def test_all_warm_up():
    found = rates(warmup_fraction=1.0)[[0, 33, 66, 99]]
    np.testing.assert_allclose(found, [0, 0.66, 1.32, 1.98], rtol=1e-6)


def test_shapes_have_their_closed_forms():
    part = np.arange(91) / 90
    expected = {
        "constant": np.full(91, PEAK),
        "linear": PEAK * (1 - 0.9 * part),
        "cosine": PEAK * (0.1 + 0.9 * (1 + np.cos(np.pi * part)) / 2),
        "wsd": PEAK * (1 - 0.9 * np.clip((np.arange(91) - 60) / 30, 0, 1)),
    }
    for schedule, values in expected.items():
        found = rates(schedule=schedule, decay_fraction=0.3)[10:]
        np.testing.assert_allclose(found, values, rtol=1e-5, err_msg=schedule)


def test_wsd_without_decline_is_constant():
    assert (rates(schedule="wsd", decay_fraction=0.0)[10:] == PEAK).all()


def test_warm_up_and_decline_that_overlap_are_refused():
    fields = {"schedule": "wsd", "warmup_fraction": 0.5, "decay_fraction": 0.6}
    with pytest.raises(UserError) as error:
        resolve({"optimizer": fields})
    assert str(error.value) == (
        "config.optimizer.decay_fraction: expected at most 1 - warmup_fraction (0.5) "
        "with wsd, got 0.6"
    )
