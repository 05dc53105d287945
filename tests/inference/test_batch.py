"""Continuous batching: tokens of a sequence do not depend on which others share it."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from cases import TINY, mesh_of, params_of

from diffeq_former.config import Config
from diffeq_former.inference import buckets
from diffeq_former.inference.generate import Generator
from diffeq_former.inference.sampling import Sampling
from diffeq_former.inference.sequence import Sequence
from diffeq_former.inference.speculative import Draft
from diffeq_former.models.transformer import Transformer
from diffeq_former.training import state

EOT = 3
CONFIG = dataclasses.replace(TINY, num_layers=2, max_len=48)
LENGTHS = (3, 40, 1, 17, 9, 30, 5, 2)  # of contexts: several chunks, one, and none
SAMPLINGS = (
    Sampling(0.0),
    Sampling(1.5),
    Sampling(1.2, top_k=5, presence_penalty=1.5),
    Sampling(0.9, top_p=0.8),
    Sampling(0.0, presence_penalty=-0.1, frequency_penalty=0.3),
    Sampling(1.1, top_k=20, min_p=0.1),
)


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch):
    monkeypatch.setattr(buckets, "SHORTEST", 4)
    monkeypatch.setattr(buckets, "CHUNK", 16)
    monkeypatch.setattr(buckets, "SHORTEST_VIEW", 16)


def sequences(lengths=LENGTHS, max_new=20):
    samplings = itertools.cycle(SAMPLINGS)
    return [
        Sequence([EOT, *[4 + (7 * i + j) % 20 for j in range(n - 1)]], k, i, sampling)
        for i, (n, sampling) in enumerate(zip(lengths, samplings, strict=False))
        for k in [min(max_new - i, CONFIG.max_len + 1 - n)]
    ]


def batch_of(generator, params, num_slots=3, ends=(EOT,)):
    """As the server's, with room for 16 tokens in a prefill call."""
    return generator.batch(
        generator.tabulate(params),
        ends,
        num_slots=num_slots,
        length=CONFIG.max_len,
        most_read=buckets.CHUNK,
    )


def run(batch, waiting, every=1):
    """Let one sequence join every few steps, as far as there is room."""
    waiting = list(waiting)
    for number in itertools.count():
        if waiting and batch.has_room and number % every == 0:
            batch.join(waiting.pop(0))
        if not (waiting or batch.sequences):
            return
        batch.step()


@pytest.fixture(scope="module")
def generator():
    return Generator(CONFIG, mesh_of())


@pytest.fixture(scope="module")
def alone(generator):
    """The tokens of each sequence without others."""
    weights = generator.tabulate(params_of(CONFIG))
    given = sequences()
    for x in given:
        generator.run(weights, [x], [EOT])
    assert max(len(x.new) for x in given) == 20 and len({len(x.new) for x in given}) > 4
    return [x.new for x in given]


@pytest.mark.parametrize(("num_slots", "every"), [(1, 1), (3, 1), (4, 2), (8, 1)])
def test_sequences_come_and_go(generator, alone, num_slots, every):
    given = sequences()
    run(batch_of(generator, params_of(CONFIG), num_slots), given, every)
    assert [x.new for x in given] == alone


def test_more_sequences_than_slots_offline(generator, alone):
    given, weights = sequences(), generator.tabulate(params_of(CONFIG))
    generator.run(weights, given, [EOT], most_at_once=3)
    assert [x.new for x in given] == alone


def test_drafted_sequences_come_and_go():
    generator = Generator(CONFIG, mesh_of(), draft=Draft(1, 3))
    weights, params = generator.tabulate(params_of(CONFIG)), params_of(CONFIG)
    alone, together = sequences(), sequences()
    for x in alone:
        generator.run(weights, [x], [EOT])
    run(batch_of(generator, params), together)
    assert [x.new for x in together] == [x.new for x in alone]
    assert 0 < generator.counts.accepted < generator.counts.drafted


@pytest.mark.mesh
def test_sequences_come_and_go_on_a_mesh(alone):
    mesh, given = mesh_of(8, data=2, fsdp=2, tensor=2), sequences()
    places = state.shardings(Config(model=CONFIG), mesh).params
    params = jax.device_put(params_of(CONFIG), places)
    run(batch_of(Generator(CONFIG, mesh), params, 8), given)
    assert [x.new for x in given] == alone


def recorded(batch):
    """The names of the programs that a batch calls, and how much they see."""
    calls, programs = [], batch._programs

    def recording(name):
        def call(weights, caches, view, first, *others):
            calls.append((name, first.shape[0], view.length))
            return getattr(programs, name)(weights, caches, view, first, *others)

        return call

    names = ("read", "decode")
    batch._programs = programs._replace(**{name: recording(name) for name in names})
    return calls


def test_one_chunk_is_read_between_decoding_steps(generator):
    """While a long prompt is read, another text is continued."""
    batch = batch_of(generator, params_of(CONFIG), ends=())
    calls = recorded(batch)
    short, long = sequences((2, 40))
    batch.join(short)
    batch.step()
    batch.join(long)
    lengths = []
    while long.unread:
        lengths.append(len(short.new))
        batch.step()
    assert lengths == [8, 16, 20]
    assert [name for name, *_ in calls] == ["read", "decode"] * 4
    assert calls[:2] == [("read", 1, 16), ("decode", 1, 16)]
    assert calls[2:4] == [("read", 1, 16), ("decode", 1, 48)]


def test_short_prompts_are_read_together(generator):
    batch = batch_of(generator, params_of(CONFIG), 4)
    calls = recorded(batch)
    for x in sequences((3, 5, 2, 4)):
        batch.join(x)
    batch.step()
    assert calls == [("read", 4, 16), ("decode", 4, 16)]


def test_a_sequence_that_is_ended_frees_its_slot_at_once(generator):
    batch = batch_of(generator, params_of(CONFIG), 1)
    first, second = sequences((40, 3))
    first.watch = lambda x: True
    batch.join(first)
    assert not batch.has_room
    batch.step()
    assert batch.has_room and (first.num_read, first.new) == (16, [])
    batch.join(second)
    batch.step()
    assert len(second.new) == 8


def test_nothing_is_compiled_after_the_warm_up(compiled):
    batch = batch_of(Generator(CONFIG, mesh_of()), params_of(CONFIG), 4)
    batch.warm_up()
    assert compiled
    compiled.clear()
    for every in (1, 2, 3):
        for scored in (None, 2):
            given = sequences()
            for x in given:
                x.num_top = scored
            run(batch, given, every)
    assert not compiled


@pytest.mark.parametrize("draft", [None, Draft(1, 2)])
def test_scores_are_those_of_the_full_forward_pass(draft):
    """Scores cover context and new tokens, beside sequences that need none."""
    generator = Generator(CONFIG, mesh_of(), vocab_size=25, draft=draft)
    given, module = sequences(), Transformer(CONFIG)
    for x in given[::2]:
        x.num_top = 3
    given[2].max_new_tokens = 0
    params = params_of(CONFIG)
    run(batch_of(generator, params), given)
    assert [x.scores for x in given[1::2]] == [[]] * 4
    for x in given[::2]:
        tokens = [*x.context, *x.new, *[EOT] * (len(x.new) < x.max_new_tokens)]
        tokens_BL = np.zeros((1, CONFIG.max_len + 1), np.int32)
        tokens_BL[0, : len(tokens)] = tokens
        logits_BLV = module.apply({"params": params}, tokens_BL[:, :-1])
        log_p_LV = np.asarray(jax.nn.log_softmax(logits_BLV[0]))
        assert len(x.scores) == len(tokens) - 1
        for token, score, log_p_V in zip(tokens[1:], x.scores, log_p_LV, strict=False):
            np.testing.assert_allclose(score.log_p, log_p_V[token], atol=2e-5)
            order = np.argsort(-log_p_V[:25])[:3]
            assert [token for token, _ in score.top] == order.tolist()
            found = [log_p for _, log_p in score.top]
            np.testing.assert_allclose(found, log_p_V[order], atol=2e-5)
    assert given[2].new == [] and max(len(x.new) for x in given[::2]) > 8
