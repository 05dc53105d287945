"""Generation: equal to the full forward pass, whatever else is in the batch."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest
import scipy.special
from cases import TINY, in_two_lots, mesh_of, name, params_of

from diffeq_former.config import Config
from diffeq_former.errors import UserError
from diffeq_former.inference import buckets
from diffeq_former.inference.generate import Generator
from diffeq_former.inference.sampling import Sampling
from diffeq_former.inference.sequence import Sequence
from diffeq_former.models.transformer import Transformer
from diffeq_former.training import state

EOT = 3
PROMPTS = [[5, 6, 7], [], [8, 9, 10, 11, 12, 13, 14, 15, 16], [4]]
CONFIG = dataclasses.replace(TINY, num_layers=2, max_len=40)
SAMPLED = {"temperature": 1.5, "top_k": 20, "top_p": 0.95}

# Every block with every source, and every solver. All combinations of the three are
# among the models whose cached decoding is tested.
VARIETY = [
    dataclasses.replace(CONFIG, block=block, weights=weights, solver=solver, max_len=16)
    for block, weights, solver in (
        ("gpt", "hypernetwork", "rk4"),
        ("gpt", "layer_table", "strang"),
        ("gpt", "shared", "midpoint"),
        ("llama", "hypernetwork", "euler"),
        ("llama", "layer_table", "lie_trotter"),
        ("llama", "shared", "heun"),
    )
]


@functools.cache
def forward(config):
    return jax.jit(Transformer(config).apply)


def between(token):
    return {"before": [token], "ends": [token]}


def logits_of(config, texts):
    """Those after each token of each text: no cache, no table, always one shape."""
    tokens_BL = np.zeros((2 * config.vocab_size, config.max_len), np.int32)
    for tokens_L, text in zip(tokens_BL, texts, strict=False):
        tokens_L[: len(text)] = text[: config.max_len]
    return forward(config)({"params": params_of(config)}, tokens_BL)[: len(texts)]


def assert_greedy(config, prompts, rows, num_new, eots):
    """Each token of a row, and its end, is the likeliest after those before it."""
    cases = list(zip(prompts, rows, eots, strict=True))
    logits_BLV = logits_of(config, [[eot, *p, *row, eot] for p, row, eot in cases])
    likeliest_BL = np.asarray(logits_BLV.argmax(axis=2))
    for (prompt, row, eot), likeliest_L in zip(cases, likeliest_BL, strict=True):
        expected = row if len(row) == num_new else [*row, eot]
        assert likeliest_L[len(prompt) :][: len(expected)].tolist() == expected
        assert eot not in row and len(row) <= num_new


@pytest.mark.parametrize(
    "config",
    in_two_lots(VARIETY, lambda c: c.solver in ("rk4", "lie_trotter")),
    ids=name,
)
def test_greedy_equals_the_full_forward_pass(config):
    ours = Generator(config, mesh_of()).generate(
        params_of(config), PROMPTS, max_new_tokens=7, temperature=0.0, **between(EOT)
    )
    assert_greedy(config, PROMPTS, ours, 7, [EOT] * len(PROMPTS))
    assert max(map(len, ours)) == 7


@pytest.mark.mesh
def test_a_mesh_generates_the_same(generate):
    mesh = mesh_of(8, fsdp=2, tensor=2)
    places = state.shardings(Config(model=CONFIG), mesh).params
    params = jax.device_put(params_of(CONFIG), places)
    options = {"max_new_tokens": 9, **SAMPLED}
    ours = Generator(CONFIG, mesh).generate(params, PROMPTS, **between(EOT), **options)
    assert ours == generate(PROMPTS, **options)


def test_the_first_of_several_ends(generator):
    options = {"max_new_tokens": 20, "temperature": 0.0, "before": [EOT]}
    generate = functools.partial(generator.generate, params_of(CONFIG), PROMPTS)
    whole = generate(ends=[], **options)
    ends = {whole[0][5], whole[1][9], whole[2][2]}
    expected = [[*itertools.takewhile(lambda t: t not in ends, row)] for row in whole]
    assert generate(ends=ends, **options) == expected != whole
    assert sum(len(row) < 20 for row in expected) >= 3


@pytest.fixture(scope="module")
def generator():
    return Generator(CONFIG, mesh_of())


@pytest.fixture(scope="module")
def generate(generator):
    return functools.partial(generator.generate, params_of(CONFIG), **between(EOT))


def test_weights_generated_in_the_scan_give_the_same(generate):
    options = {"generate_weights": "per_step", "remat": "save_weights"}
    per_step = Generator(dataclasses.replace(CONFIG, **options), mesh_of())
    options = {"max_new_tokens": 9, **SAMPLED}
    ours = per_step.generate(params_of(CONFIG), PROMPTS, **between(EOT), **options)
    assert ours == generate(PROMPTS, **options)


def test_a_row_does_not_depend_on_its_batch(generate):
    """Row i draws with seed + i; padding and neighbours change nothing."""
    together = generate(PROMPTS, max_new_tokens=20, seed=7, **SAMPLED)
    for i, prompt in enumerate(PROMPTS):
        alone = generate([prompt], max_new_tokens=20, seed=7 + i, **SAMPLED)
        assert alone == together[i : i + 1]


def test_a_seed_reproduces(generate):
    first = generate(PROMPTS, max_new_tokens=20, seed=1, **SAMPLED)
    assert generate(PROMPTS, max_new_tokens=20, seed=1, **SAMPLED) == first
    others = generate(PROMPTS, max_new_tokens=20, seed=11, **SAMPLED)
    assert all(a != b for a, b in zip(first, others, strict=True))
    equal = generate([[5]] * 4, max_new_tokens=20, **SAMPLED)
    assert len(set(map(tuple, equal))) == 4, "equal prompts must not share their draws"


def test_each_token_is_sampled_afresh(generator):
    """Where all tokens are equally likely, only the keys differ between places."""
    params = jax.tree.map(np.zeros_like, params_of(CONFIG))
    rows = generator.generate(
        params, PROMPTS, max_new_tokens=30, **between(CONFIG.vocab_size - 1), **SAMPLED
    )
    assert all(len(row) == 30 and len(set(row)) > 10 for row in rows)


def test_fewer_new_tokens_are_a_prefix(generate):
    longer = generate(PROMPTS, max_new_tokens=20, **SAMPLED)
    shorter = generate(PROMPTS, max_new_tokens=6, **SAMPLED)
    assert shorter == [row[:6] for row in longer]
    assert generate(PROMPTS, max_new_tokens=0) == [[], [], [], []]
    assert generate([], max_new_tokens=5) == []


def test_each_row_ends_with_its_own_text(generator):
    prompts, ends, rows = PROMPTS[:2], range(CONFIG.vocab_size), []
    for end in ends:
        rows += generator.generate(
            params_of(CONFIG),
            prompts,
            max_new_tokens=20,
            temperature=0.0,
            **between(end),
        )
    assert_greedy(CONFIG, prompts * len(ends), rows, 20, np.repeat(ends, 2).tolist())
    lengths = [(len(a), len(b)) for a, b in zip(rows[::2], rows[1::2], strict=True)]
    uneven = any(a != b for a, b in lengths)
    assert uneven, "no row ended before the others: choose other parameters"


def test_sampled_frequencies_are_those_of_the_model(generate):
    """The first token after a prompt, over many seeds, against the softmax."""
    prompts = [[5, 6]] * 4000
    tokens = [row[0] if row else EOT for row in generate(prompts, max_new_tokens=1)]
    [logits_LV] = np.asarray(logits_of(CONFIG, [[EOT, 5, 6]]), np.float64)
    p_V = scipy.special.softmax(logits_LV[2])
    frequencies_V = np.bincount(tokens, minlength=CONFIG.vocab_size) / len(tokens)
    deviation_V = np.sqrt(p_V * (1 - p_V) / len(tokens)) + 1 / len(tokens)
    assert (np.abs(frequencies_V - p_V) < 4 * deviation_V).all()


def test_ids_past_the_vocabulary_are_never_drawn(generate):
    options = {"max_new_tokens": 30, **SAMPLED}
    assert max(sum(generate(PROMPTS, **options), [])) >= 10
    bound = Generator(CONFIG, mesh_of(), vocab_size=10)
    ours = bound.generate(params_of(CONFIG), PROMPTS, **between(EOT), **options)
    assert 0 < max(sum(ours, [])) < 10


def test_the_whole_length_can_be_used_and_no_more(generate):
    prompt = [5] * 10
    room = CONFIG.max_len - len(prompt)
    ours = generate([prompt, []], max_new_tokens=room, temperature=0.0)
    assert_greedy(CONFIG, [prompt, []], ours, room, [EOT, EOT])
    assert len(ours[0]) == room
    with pytest.raises(UserError) as raised:
        generate([[], prompt], max_new_tokens=room + 1)
    assert str(raised.value) == (
        "max_new_tokens: 31 new tokens after 11 are more than the model's max_len of "
        "40 has room for; shorten the prompt or ask for at most 30 new tokens"
    )
    with pytest.raises(UserError, match="max_new_tokens: expected 0 or more, got -1"):
        generate([prompt], max_new_tokens=-1)


def test_prompts_are_read_in_chunks(monkeypatch, generate):
    """Longer than a chunk, by part of one, by several, and by none, in one batch."""
    prompts = [[5 + i % 7 for i in range(n)] for n in (21, 4, 8, 9, 0, 16)]
    options = {"max_new_tokens": 12, **SAMPLED}
    whole = generate(prompts, **options)
    monkeypatch.setattr(buckets, "SHORTEST", 4)
    monkeypatch.setattr(buckets, "CHUNK", 8)
    assert generate(prompts, **options) == whole


def test_a_cache_is_as_long_as_its_sequences(monkeypatch, generate):
    options = {"max_new_tokens": 12, **SAMPLED}
    long = generate(PROMPTS, **options)
    sizes = []
    monkeypatch.setattr(buckets, "SHORTEST_CACHE", 4)
    monkeypatch.setattr(buckets, "cache", _recorded(buckets.cache, sizes))
    assert generate(PROMPTS, **options) == long
    assert sizes == [32]


def _recorded(function, results):
    def recorded(*arguments):
        results.append(function(*arguments))
        return results[-1]

    return recorded


def test_rows_have_limits_and_samplings_of_their_own(generator, generate):
    samplings = [Sampling(1.5, 0, 0.9), Sampling(0.0), Sampling(1.0, 5)]
    limits, seeds, eot = (3, 20, 9), (4, 4, 11), CONFIG.vocab_size
    rows = [
        Sequence([eot, *prompt], limit, seed, sampling)
        for prompt, limit, seed, sampling in zip(
            PROMPTS, limits, seeds, samplings, strict=False
        )
    ]
    generator.run(generator.tabulate(params_of(CONFIG)), rows, [eot])
    for row in rows:
        [alone] = generator.generate(
            params_of(CONFIG),
            [row.context[1:]],
            max_new_tokens=row.max_new_tokens,
            seed=row.seed,
            temperature=row.sampling.temperature,
            top_k=row.sampling.top_k,
            top_p=row.sampling.top_p,
            **between(eot),
        )
        assert row.new == alone and len(alone) == row.max_new_tokens
    counts = generator.counts
    assert counts.drafted == counts.accepted == 0 < counts.new


def test_a_watcher_sees_what_came_and_may_end_a_row(generate):
    whole = generate(PROMPTS, max_new_tokens=20, seed=2, **SAMPLED)
    seen = [[] for _ in PROMPTS]

    def watch(i, tokens, ended):
        seen[i].append((list(tokens), ended))
        return i == 2

    rows = generate(PROMPTS, max_new_tokens=20, seed=2, watch=watch, **SAMPLED)
    assert [row for i, row in enumerate(rows) if i != 2] == whole[:2] + whole[3:]
    assert len(seen[2]) == 1 and rows[2] == whole[2][: len(rows[2])] != whole[2]
    for i, calls in enumerate(seen):
        assert [ended for _, ended in calls][:-1] == [False] * (len(calls) - 1)
        assert calls[-1] == (rows[i], i != 2)
        grown = [tokens for tokens, _ in calls]
        assert all(b[: len(a)] == a for a, b in zip(grown, grown[1:], strict=False))
    assert max(map(len, seen)) > 1


def test_few_programs_are_compiled(compiled):
    """Whatever the lengths, seeds and sampling: those of their buckets."""
    config = dataclasses.replace(CONFIG, weights="shared")
    generator, params = Generator(config, mesh_of()), params_of(config)
    compiled.clear()
    for length in range(0, 32, 3):
        generator.generate(
            params,
            [[5] * length] * 3,
            max_new_tokens=1 + length % 5,
            temperature=length,
            top_k=length % 4,
            seed=length,
            **between(3),
        )
    # The table, the empty cache, prompts up to 16 and 64 tokens, and decoding.
    assert buckets.SHORTEST == 16 and len(compiled) == 5
