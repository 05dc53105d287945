import math
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TINY

from diffeq_former.config import Config, TrainingConfig
from diffeq_former.training import metrics
from diffeq_former.training.flops import flops_per_token
from diffeq_former.training.metrics import Meter, perplexity
from diffeq_former.training.parts import partition
from diffeq_former.training.update import norms, squares

SEQ_LEN, ROWS = 8, 4
LOSS = {"loss": jnp.float32(math.log(7.0))}


@pytest.fixture
def meter():
    training = TrainingConfig(batch_size=ROWS, depth_steps=(2, 5, 5))
    mesh = types.SimpleNamespace(local_devices=jax.devices()[:1], size=8)
    dataset = types.SimpleNamespace(seq_len=SEQ_LEN, sources=("one",))
    return Meter(Config(model=TINY, training=training), dataset, mesh)


def test_norms_of_all_and_by_group():
    params = {
        "embedding": {"token": jnp.array([3.0, 0.0])},
        "head": {"kernel": jnp.array([4.0])},
        "weights": {"qkv": {"bank": jnp.array([5.0]), "bias_bank": jnp.array([12.0])}},
    }
    values = norms("n", squares(partition(Config(model=TINY), params)))
    found = {k: float(v) for k, v in values.items()}
    groups = {"n/embedding": 3, "n/head": 4, "n/bank": 13}
    assert found == pytest.approx({"n": math.sqrt(194)} | groups)


def test_rates_agree_with_each_other_and_with_the_clock(request):
    start = time.perf_counter()
    meter = request.getfixturevalue("meter")  # its clock starts here
    for _ in range(4):
        time.sleep(0.01)
        meter.count_step(5)
    values = meter.report(LOSS, 1)
    elapsed = time.perf_counter() - start
    seconds = values["seconds_per_step"]
    assert 0.01 <= seconds <= elapsed / 4
    assert values["tokens_per_second"] == pytest.approx(ROWS * SEQ_LEN / seconds)
    assert values["perplexity"] == pytest.approx(7.0, rel=1e-5)
    assert all(type(x) is float for x in values.values())


def test_waiting_is_counted_a_step_and_pauses_are_not_counted(meter):
    for _ in range(2):
        with meter.data_wait():
            time.sleep(0.02)
        meter.count_step(5)
    start = time.perf_counter()
    with meter.pause():
        time.sleep(0.5)
    paused = time.perf_counter() - start
    values = meter.report(LOSS, 1)
    assert 0.02 <= values["data_wait_seconds"] <= values["seconds_per_step"]
    assert 2 * values["seconds_per_step"] < paused


def test_a_report_in_a_pause_starts_anew_after_it(meter):
    with meter.pause():
        time.sleep(0.2)
        meter.report(LOSS, 1)
        time.sleep(0.2)
    start = time.perf_counter()
    meter.count_step(5)
    seconds = meter.report(LOSS, 1)["seconds_per_step"]
    assert 0 < seconds <= time.perf_counter() - start + 0.1


def test_a_report_starts_anew(meter):
    with meter.data_wait():
        time.sleep(0.01)
    meter.count_step(5)
    meter.report(LOSS, 1)
    meter.count_step(5)
    assert meter.report(LOSS, 1)["data_wait_seconds"] == 0.0


def test_memory_is_that_of_this_process(meter):
    before = meter.report(LOSS, 1)["host_memory_gib"]
    ballast = np.ones(2**27, np.uint8)
    grown = meter.report(LOSS, 1)["host_memory_gib"] - before
    assert grown == pytest.approx(ballast.nbytes / 2**30, rel=0.3)


def test_utilisation_counts_the_steps_that_were_taken(meter, monkeypatch):
    monkeypatch.setattr(metrics, "peak_flops", lambda kind: 1e9)
    depths = (TINY.num_layers, 5, 2, 5)
    for depth in depths:
        meter.count_step(depth)
    values = meter.report(LOSS, 1)
    of_token = [flops_per_token(TINY.at_depth(n), SEQ_LEN) for n in depths]
    flops = ROWS * SEQ_LEN * sum(of_token)
    expected = flops / (4 * values["seconds_per_step"] * 8e9)
    assert values["mfu"] == pytest.approx(expected, rel=1e-6)


def test_unknown_devices_report_no_utilisation(meter):
    assert "mfu" not in meter.report(LOSS, 1)


def test_perplexity_beyond_floats_is_infinite():
    assert perplexity(1e4) == math.inf
    assert math.isnan(perplexity(math.nan))
