"""Presence and frequency penalties, token by token against the full forward pass."""

import dataclasses

import jax
import numpy as np
import pytest
from cases import TINY, mesh_of, params_of

from diffeq_former.inference.generate import Generator
from diffeq_former.inference.sampling import Sampling
from diffeq_former.inference.sequence import Sequence
from diffeq_former.inference.speculative import Draft
from diffeq_former.models.transformer import Transformer

CONFIG = dataclasses.replace(TINY, num_layers=2, max_len=48)
VOCAB = 25  # ids from this one on are never sampled
CONTEXTS = ([3, 5, 6, 5, 5], [4], [7, 8] * 5, [3, 9])
NUM_NEW = 30
PENALTIES = [(0.0, 0.0), (2.0, 0.0), (0.0, 0.7), (-0.4, 0.6)]  # presence, frequency


@pytest.fixture(scope="module")
def reference():
    """Sample a sequence by one full forward pass for each token."""
    params, apply = params_of(CONFIG), jax.jit(Transformer(CONFIG).apply)

    def reference(x: Sequence) -> list[int]:
        s, new = x.sampling, []
        while len(new) < x.max_new_tokens:
            tokens_1L = np.zeros((1, CONFIG.max_len), np.int32)
            last = len(x.context) + len(new) - 1
            tokens_1L[0, : last + 1] = [*x.context, *new]
            logits_1LV = np.array(apply({"params": params}, tokens_1L))
            logits_V = logits_1LV[0, last, :VOCAB]
            for token in set(new):
                logits_V[token] -= s.frequency_penalty * new.count(token)
                logits_V[token] -= s.presence_penalty
            if s.temperature:
                key = jax.random.fold_in(jax.random.key(x.seed), last)
                noise_V = np.asarray(jax.random.gumbel(key, VOCAB))
                logits_V = logits_V / s.temperature + noise_V
            new.append(int(logits_V.argmax()))
        return new

    return reference


def sequences(temperature, penalties=PENALTIES):
    return [
        Sequence(
            context,
            NUM_NEW,
            seed,
            Sampling(temperature, presence_penalty=p, frequency_penalty=f),
        )
        for seed, (context, (p, f)) in enumerate(zip(CONTEXTS, penalties, strict=True))
    ]


@pytest.mark.parametrize(
    ("temperature", "draft"), [(0.0, None), (0.7, None), (0.0, Draft(1, 3))]
)
def test_tokens_are_those_of_the_reference(reference, temperature, draft):
    """Over several calls of the decoding program; greedy ones with a draft too."""
    generator = Generator(CONFIG, mesh_of(), VOCAB, draft)
    weights, given = generator.tabulate(params_of(CONFIG)), sequences(temperature)
    generator.run(weights, given, ends=[])
    assert [x.new for x in given] == list(map(reference, given))
    plain = sequences(temperature, [(0.0, 0.0)] * 4)
    generator.run(weights, plain, ends=[])
    changed = [a.new != b.new for a, b in zip(given, plain, strict=True)]
    assert changed == [False, True, True, True]
