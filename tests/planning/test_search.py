import dataclasses
import math

import pytest
from runs import TINY

from diffeq_former.errors import UserError
from diffeq_former.planning.devices import DEVICES
from diffeq_former.planning.search import search
from diffeq_former.training.flops import PEAKS

DEVICE = DEVICES["v5e"]


def with_memory(num_bytes):
    return dataclasses.replace(DEVICE, memory=num_bytes)


@pytest.fixture(scope="module")
def plans():
    return search(TINY, 4, DEVICE)


def test_plans_that_fit_come_first_and_sorted(plans):
    totals = sorted(plan.memory.total for plan in plans)
    limit = totals[len(totals) // 3] / 0.92 + 1
    found = search(TINY, 4, with_memory(limit))
    fitting = [plan for plan in found if plan.fits]
    assert 5 < len(fitting) < len(found) == len(plans)
    assert found[: len(fitting)] == fitting
    seconds = [plan.seconds for plan in fitting]
    assert seconds == sorted(seconds)
    assert all(plan.memory.total < limit for plan in fitting)


def test_where_nothing_fits_the_smallest_is_first(plans):
    found = search(TINY, 4, with_memory(1000))
    assert not any(plan.fits for plan in found)
    smallest = min(plan.memory.total for plan in plans)
    assert found[0].memory.total == smallest


def test_all_that_is_allowed_is_tried(plans):
    tried = {
        (
            *plan.sizes.values(),
            plan.as_dict()["num_micro_batches"],
            plan.config.model.remat,
        )
        for plan in plans
    }
    assert len(tried) == len(plans)
    assert all(math.prod(plan.sizes.values()) == 4 for plan in plans)
    assert (4, 1, 1, 1, 2, "full") in tried and (1, 4, 1, 1, 1, "none") in tried
    assert (2, 1, 2, 1, 4, "dots") in tried
    assert not [t for t in tried if t[3] > 1]  # 257 tokens: no cut of the vocabulary
    assert not [t for t in tried if t[0] * t[1] * t[4] > 8]  # no more than the rows


def test_no_mesh_divides_the_batch():
    with pytest.raises(UserError, match=r"^3 devices: no mesh of them divides"):
        search(TINY, 3, DEVICE)


def test_a_kernel_that_the_devices_do_not_have():
    model = dataclasses.replace(TINY.model, attention_implementation="cudnn")
    asked = dataclasses.replace(TINY, model=model)
    with pytest.raises(UserError, match="'cudnn', which needs an NVIDIA GPU, not tpu"):
        search(asked, 4, DEVICE)


def test_devices_are_those_with_a_peak():
    assert DEVICES.keys() == PEAKS.keys()
    for name, device in DEVICES.items():
        assert device.peak_flops == PEAKS[name][1]
        assert 0 < device.network < device.link < device.bandwidth
