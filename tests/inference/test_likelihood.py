"""Scores of continuations against the model's probabilities, taken one by one."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from cases import TINY, mesh_of, params_of

from diffeq_former.inference import likelihood
from diffeq_former.inference.likelihood import make_score
from diffeq_former.models.transformer import Transformer

CONFIG = dataclasses.replace(TINY, max_len=40)
PAIRS = [
    ([3], [1, 2]),
    ([0, 5, 9, 11], [4]),
    ([7] * 30, [8] * 11),  # 41 tokens: the last has no place, and needs none
    ([6] * 60, list(range(12))),
    ([1, 2], list(range(20)) * 3),
]


@pytest.fixture(scope="module")
def params():
    return params_of(CONFIG)


@functools.cache
def forward():
    return jax.jit(Transformer(CONFIG).apply)


def logits_of(params, tokens):
    """One row a token, in float64. What follows a token changes nothing before it."""
    padded_L = np.zeros(CONFIG.max_len, np.int32)
    padded_L[: len(tokens)] = tokens
    logits_LV = forward()({"params": params}, padded_L[None])[0]
    return np.asarray(logits_LV, np.float64)[: len(tokens)]


def by_hand(params, context, more) -> tuple[float, bool]:
    """log p and whether it is greedy, from the logits of the whole sequence."""
    whole = (context + more)[-(CONFIG.max_len + 1) :]
    logits_LV = logits_of(params, whole[:-1])
    log_p_LV = logits_LV - np.log(np.exp(logits_LV).sum(axis=1, keepdims=True))
    m = min(len(more), CONFIG.max_len)
    rows, targets = log_p_LV[-m:], whole[-m:]
    total = sum(row[target] for row, target in zip(rows, targets, strict=True))
    return total, all(row.argmax() == t for row, t in zip(rows, targets, strict=True))


@pytest.mark.parametrize("chunk", [8, 128])
def test_as_by_hand_in_the_order_of_the_pairs(params, monkeypatch, chunk):
    monkeypatch.setattr(likelihood, "CHUNK", chunk)
    found = make_score(CONFIG, mesh_of(), batch_size=2)(params, PAIRS)
    expected = [by_hand(params, *pair) for pair in PAIRS]
    for (log_p, greedy), (right, is_greedy) in zip(found, expected, strict=True):
        assert log_p == pytest.approx(right, abs=2e-5) and greedy == is_greedy


def test_greedy_continuations_are_recognised(params):
    context = [3, 1]
    for _ in range(3):
        context = [*context, int(logits_of(params, context)[-1].argmax())]
    greedy, other = context[2:], [*context[2:-1], (context[-1] + 1) % CONFIG.vocab_size]
    score = make_score(CONFIG, mesh_of(), batch_size=2)
    found = score(params, [(context[:2], greedy), (context[:2], other)])
    assert [is_greedy for _, is_greedy in found] == [True, False]


@pytest.mark.mesh
def test_a_mesh_scores_the_same(params):
    axes = {"data": 1, "fsdp": 2, "sequence": 2, "tensor": 2}
    alone = make_score(CONFIG, mesh_of(), batch_size=3)(params, PAIRS)
    shared = make_score(CONFIG, mesh_of(8, **axes), batch_size=3)(params, PAIRS)
    np.testing.assert_allclose(shared, alone, rtol=1e-6)
