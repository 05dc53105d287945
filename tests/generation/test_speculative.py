"""Drafted and verified: the full model's own text, or draws of its own distribution."""

import collections
import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest
import scipy.stats
from cases import TINY, mesh_of, name, params_of

from diffeq_former.errors import UserError
from diffeq_former.generation.decode import Rows
from diffeq_former.generation.generate import Generator
from diffeq_former.generation.speculative import Draft, verify
from diffeq_former.models.transformer import Transformer

EOT = 3
PROMPTS = [[5, 6, 7], [], [8, 9, 10, 11, 12, 13, 14, 15, 16], [4]]
CONFIG = dataclasses.replace(TINY, num_layers=4, max_len=24, vocab_size=20)
SAMPLED = {"temperature": 1.5, "top_k": 12, "top_p": 0.95}
VARIETY = [
    pytest.param(CONFIG, Draft(1, 3), id="gpt-hypernetwork-euler"),
    *(
        pytest.param(
            dataclasses.replace(CONFIG, block=block, weights="shared", solver=solver),
            draft,
            id=f"{block}-shared-{solver}",
            marks=pytest.mark.slow,
        )
        for block, solver, draft in (
            ("llama", "heun", Draft(1, 1)),
            ("gpt", "strang", Draft(3, 6)),
        )
    ),
]


@pytest.mark.parametrize(("config", "draft"), VARIETY)
def test_greedy_text_is_the_same(config, draft):
    """Up to the model's whole length, where what is drafted goes beyond it."""
    params, prompts = params_of(config), PROMPTS
    options = {"max_new_tokens": config.max_len - 9, "temperature": 0.0, "eot": EOT}
    plain = Generator(config, mesh_of())
    ours = Generator(config, mesh_of(), draft=draft)
    assert ours.generate(params, prompts, **options) == plain.generate(
        params, prompts, **options
    )
    assert 0 < ours.num_accepted < ours.num_drafted
    assert plain.num_drafted == 0


@pytest.fixture(scope="module")
def generator():
    return Generator(CONFIG, mesh_of(), draft=Draft(2, 3))


@pytest.mark.slow
def test_a_row_does_not_depend_on_its_batch(generator):
    options = {"max_new_tokens": 15, "eot": EOT, **SAMPLED}
    together = generator.generate(params_of(CONFIG), PROMPTS, seed=7, **options)
    for i, prompt in enumerate(PROMPTS):
        alone = generator.generate(params_of(CONFIG), [prompt], seed=7 + i, **options)
        assert alone == together[i : i + 1]
    assert len(set(map(tuple, together))) == len(PROMPTS)


def test_a_draft_of_full_depth_is_accepted_whole():
    ours = Generator(CONFIG, mesh_of(), draft=Draft(CONFIG.num_layers, 3))
    ours.generate(
        params_of(CONFIG), PROMPTS, max_new_tokens=15, eot=CONFIG.vocab_size, **SAMPLED
    )
    assert ours.num_accepted == ours.num_drafted > 0
    assert ours.num_new == 4 * 15


def test_each_place_of_a_round_has_the_distribution_of_the_model():
    """Without models: what is drafted from q is made into draws from p."""
    random, B, K, V = np.random.default_rng(3), 8000, 2, 5
    p_WV = random.dirichlet(np.ones(V), K + 1).astype(np.float32)
    q_KV = random.dirichlet(np.ones(V), K).astype(np.float32)
    drafted_BK = np.stack(
        [random.choice(V, B, p=q_V / q_V.sum()) for q_V in q_KV.astype(float)], axis=1
    )
    p_BWV, q_BKV = (np.broadcast_to(x, (B, *x.shape)) for x in (p_WV, q_KV))
    keys_B = jax.random.split(jax.random.key(0), B)
    nowhere_B = np.zeros(B, np.int32)
    rows = Rows(np.zeros((B, 2), np.int32), nowhere_B, nowhere_B, keys_B)
    new_BW, counts_B = map(np.asarray, jax.jit(verify)(drafted_BK, q_BKV, p_BWV, rows))
    reached = np.cumprod([1, *np.minimum(p_WV[:K], q_KV).sum(axis=1)])
    for place in range(K + 1):
        counted_B = counts_B > place
        deviation = np.sqrt(reached[place] * (1 - reached[place]) / B)
        assert abs(counted_B.mean() - reached[place]) <= 4 * deviation
        seen_V = np.bincount(new_BW[counted_B, place], minlength=V)
        p_V = p_WV[place].astype(float)
        expected_V = seen_V.sum() * p_V / p_V.sum()
        assert scipy.stats.chisquare(seen_V, expected_V).pvalue > 1e-3


# Of few tokens, so that every text of three of them is often drawn. The last id ends
# texts and is never drawn.
FEW = dataclasses.replace(CONFIG, vocab_size=6, max_len=8)
DRAWS, PROMPT, END = 4000, [1, 2], 5
KINDS = [
    pytest.param({}, id="all"),
    pytest.param(
        {"temperature": 0.7, "top_k": 4, "top_p": 0.9},
        id="narrowed",
        marks=pytest.mark.slow,
    ),
]


@functools.cache
def forward(config):
    return jax.jit(Transformer(config).apply)


def narrowed(logits_V, temperature=1.0, top_k=0, top_p=1.0):
    """The probabilities to draw with, one token after the other."""
    p_V = np.exp((logits_V - logits_V.max()).astype(np.float64) / temperature)
    order = list(np.argsort(-p_V))[: top_k or None]
    kept, total = [], p_V[order].sum()
    while p_V[kept].sum() < top_p * total * (1 - 1e-9):
        kept.append(order.pop(0))
    narrow_V = np.zeros_like(p_V)
    narrow_V[kept] = p_V[kept] / p_V[kept].sum()
    return narrow_V


def next_token(config, tokens, **sampling):
    """Its exact distribution, by a full forward pass of one sequence."""
    padded_L = np.zeros(config.max_len, np.int32)
    padded_L[: len(tokens)] = tokens
    logits_LV = forward(config)({"params": params_of(FEW)}, padded_L[None])[0]
    return narrowed(np.asarray(logits_LV[len(tokens) - 1, :END]), **sampling)


def drawn(draft, num_new, **sampling):
    """Texts of DRAWS rows."""
    generator = Generator(FEW, mesh_of(), vocab_size=END, draft=draft)
    rows = generator.generate(
        params_of(FEW),
        [PROMPT] * DRAWS,
        max_new_tokens=num_new,
        eot=END,
        seed=5,
        **sampling,
    )
    return rows, generator


@pytest.mark.slow
@pytest.mark.parametrize("sampling", KINDS)
def test_draws_have_the_distribution_of_the_full_model(sampling):
    """All texts of three tokens, by a chi-square test; a round adds one to three."""
    rows, generator = drawn(Draft(1, 2), 3, **sampling)
    assert 0.3 < generator.num_accepted / generator.num_drafted < 0.9
    seen, begin, expected = collections.Counter(map(tuple, rows)), [END, *PROMPT], {}
    for text in itertools.product(range(END), repeat=3):
        p = [
            next_token(FEW, [*begin, *text[:i]], **sampling)[text[i]] for i in range(3)
        ]
        expected[text] = DRAWS * np.prod(p)
    counts = np.array([seen[text] for text in expected])
    expected = np.array(list(expected.values()))
    assert sum(counts) == DRAWS and (counts[expected == 0] == 0).all()
    rare = expected < 5
    counts, expected = (
        np.append(x[~rare], x[rare].sum() + 1e-9) for x in (counts, expected)
    )
    assert scipy.stats.chisquare(counts, expected).pvalue > 1e-3


@pytest.mark.slow
def test_acceptance_is_what_the_distributions_have_in_common():
    """Of the first token: the sum of min(p, q) (Leviathan et al., theorem 3.5)."""
    _, generator = drawn(Draft(1, 1), 1)
    begin = [END, *PROMPT]
    p_V, q_V = (next_token(config, begin) for config in (FEW, FEW.at_depth(1)))
    common = np.minimum(p_V, q_V).sum()
    deviation = np.sqrt(common * (1 - common) / DRAWS)
    assert generator.num_drafted == DRAWS
    assert abs(generator.num_accepted / DRAWS - common) < 4 * deviation


@pytest.mark.parametrize(
    ("config", "draft", "message"),
    [
        (CONFIG, Draft(0, 4), "draft_steps: expected 1 to 4, the model's own number"),
        (CONFIG, Draft(5, 4), "draft_steps: expected 1 to 4, the model's own number"),
        (CONFIG, Draft(2, 0), "draft_tokens: expected 1 to 23, for a model whose"),
        (CONFIG, Draft(2, 24), "draft_tokens: expected 1 to 23, for a model whose"),
        (
            dataclasses.replace(CONFIG, weights="layer_table"),
            Draft(2, 4),
            "draft_steps: this model is a layer_table, with no weights between",
        ),
    ],
    ids=lambda x: name(x) if hasattr(x, "block") else str(x)[:20],
)
def test_drafts_that_cannot_be(config, draft, message):
    with pytest.raises(UserError, match=message):
        Generator(config, mesh_of(), draft=draft)
