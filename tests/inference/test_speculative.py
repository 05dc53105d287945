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
from diffeq_former.inference.decode import DecodingState
from diffeq_former.inference.generate import Generator
from diffeq_former.inference.speculative import Draft, verify
from diffeq_former.models.transformer import Transformer

EOT = 3
PROMPTS = [[5, 6, 7], [], [8, 9, 10, 11, 12, 13, 14, 15, 16], [4]]
CONFIG = dataclasses.replace(TINY, num_layers=4, max_len=24, vocab_size=20)
SAMPLED = {"temperature": 1.5, "top_k": 12, "top_p": 0.95, "frequency_penalty": 1.0}
VARIETY = [
    pytest.param(
        dataclasses.replace(CONFIG, block=block, weights=weights, solver=solver),
        draft,
        id=f"{block}-{weights}-{solver}",
        marks=pytest.mark.slow if weights == "shared" else [],
    )
    for block, weights, solver, draft in (
        ("gpt", "hypernetwork", "euler", Draft(1, 3)),
        ("llama", "shared", "heun", Draft(1, 1)),
        ("gpt", "shared", "strang", Draft(3, 6)),
    )
]


@functools.cache
def forward(config):
    return jax.jit(Transformer(config).apply)


def logits_of(config, texts):
    """Those of the full model after each token of each text, by one forward pass."""
    tokens_BL = np.zeros((len(texts), config.max_len), np.int32)
    for tokens_L, text in zip(tokens_BL, texts, strict=True):
        tokens_L[: len(text)] = text[: config.max_len]
    return np.asarray(forward(config)({"params": params_of(config)}, tokens_BL))


@pytest.mark.parametrize(("config", "draft"), VARIETY)
def test_greedy_text_is_that_of_the_full_model(config, draft):
    """Up to the model's whole length, where what is drafted goes beyond it."""
    ours, num_new = Generator(config, mesh_of(), draft=draft), config.max_len - 9
    rows = ours.generate(
        params_of(config),
        PROMPTS,
        max_new_tokens=num_new,
        temperature=0.0,
        before=[EOT],
        ends=[EOT],
    )
    texts = [[EOT, *p, *row, EOT] for p, row in zip(PROMPTS, rows, strict=True)]
    likeliest_BL = logits_of(config, texts).argmax(axis=2)
    for prompt, row, likeliest_L in zip(PROMPTS, rows, likeliest_BL, strict=True):
        ended = [] if len(row) == num_new else [EOT]
        assert likeliest_L[len(prompt) :][: len(row + ended)].tolist() == row + ended
        assert EOT not in row and len(row) <= num_new
    assert max(map(len, rows)) == num_new
    assert 0 < ours.counts.accepted < ours.counts.drafted


def test_a_draft_of_full_depth_is_accepted_whole():
    ours = Generator(CONFIG, mesh_of(), draft=Draft(CONFIG.num_layers, 3))
    ours.generate(
        params_of(CONFIG),
        PROMPTS,
        max_new_tokens=15,
        before=[CONFIG.vocab_size],
        ends=[CONFIG.vocab_size],
        **SAMPLED,
    )
    assert ours.counts.accepted == ours.counts.drafted > 0
    assert ours.counts.new == 4 * 15


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
    state = DecodingState(
        np.zeros((B, 2), np.int32), nowhere_B, nowhere_B, keys_B, None
    )
    new_BW, counts_B = map(np.asarray, jax.jit(verify)(drafted_BK, q_BKV, p_BWV, state))
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
DRAWS, PROMPT, END = 4000, (1, 2), 5
NARROWED = {"temperature": 0.7, "top_k": 4, "top_p": 0.9}
PENALISED = {"temperature": 1.2, "presence_penalty": -1.0, "frequency_penalty": 1.5}


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


# Every text of two tokens after the prompt: with what is before them, all contexts.
TEXTS = list(itertools.product(range(END), repeat=2))


@functools.cache
def logits_of_texts(config):
    return logits_of(config, [[END, *PROMPT, *text] for text in TEXTS])


def next_token(config, new, presence_penalty=0.0, frequency_penalty=0.0, **sampling):
    """Its exact distribution after the prompt and up to two new tokens."""
    row = next(i for i, text in enumerate(TEXTS) if text[: len(new)] == tuple(new))
    logits_V = logits_of_texts(config)[row, len(PROMPT) + len(new), :END]
    counts_V = np.bincount(new, minlength=END) if new else np.zeros(END)
    penalty_V = frequency_penalty * counts_V + presence_penalty * (counts_V > 0)
    return narrowed(logits_V - penalty_V, **sampling)


@pytest.fixture(scope="module")
def generate():
    """Gives texts of DRAWS rows, and how many tokens were drafted and accepted."""
    generator = Generator(FEW, mesh_of(), vocab_size=END, draft=Draft(1, 2))

    @functools.cache
    def run(num_new, prompts=(PROMPT,), **sampling):
        counts = generator.counts.drafted, generator.counts.accepted
        rows = generator.generate(
            params_of(FEW),
            list(itertools.islice(itertools.cycle(prompts), DRAWS)),
            max_new_tokens=num_new,
            before=[END],
            ends=[END],
            seed=5,
            **sampling,
        )
        drafted = generator.counts.drafted - counts[0]
        return rows, drafted, generator.counts.accepted - counts[1]

    return run


@pytest.mark.parametrize(
    "sampling", [{}, NARROWED, PENALISED], ids=["all", "narrowed", "penalised"]
)
def test_sampled_texts_have_the_distribution_of_the_full_model(generate, sampling):
    """All texts of three tokens, by a chi-square test; a round adds one to three."""
    rows, drafted, accepted = generate(3, **sampling)
    assert 0.3 < accepted / drafted < 0.9
    seen, expected = collections.Counter(map(tuple, rows)), {}
    for text in itertools.product(range(END), repeat=3):
        p = [next_token(FEW, text[:i], **sampling)[text[i]] for i in range(3)]
        expected[text] = DRAWS * np.prod(p)
    counts = np.array([seen[text] for text in expected])
    expected = np.array(list(expected.values()))
    assert sum(counts) == DRAWS and (counts[expected == 0] == 0).all()
    rare = expected < 5
    counts, expected = (
        np.append(x[~rare], x[rare].sum() + 1e-9) for x in (counts, expected)
    )
    assert scipy.stats.chisquare(counts, expected).pvalue > 1e-3


def test_acceptance_is_what_the_distributions_have_in_common(generate):
    """The sum of min(p, q) (Leviathan et al., theorem 3.5), for each drafted token.

    The second of a round counts where the first, x, was accepted.
    """
    _, drafted, accepted = generate(1)

    def in_common(new):
        return np.minimum(next_token(FEW, new), next_token(FEW.at_depth(1), new))

    first = in_common(())
    second = sum(first[x] * in_common((x,)).sum() for x in range(END))
    expected = first.sum() + second
    # Of 0, 1 or 2 accepted tokens of a row.
    variance = first.sum() + 3 * second - expected**2
    assert drafted == 2 * DRAWS
    assert abs(accepted / DRAWS - expected) < 4 * np.sqrt(variance / DRAWS)


def test_a_row_does_not_depend_on_its_batch(generate):
    alike, *_ = generate(3, **NARROWED)
    mixed, *_ = generate(3, (PROMPT, (3,), (), (4, 0, 4)), **NARROWED)
    assert mixed[::4] == alike[::4] and mixed != alike
    assert len(set(map(tuple, alike))) > 20


@pytest.mark.parametrize(
    ("config", "draft", "message"),
    [
        (CONFIG, Draft(0, 4), "draft_steps: expected 1 to 4, the model's own number"),
        (CONFIG, Draft(5, 4), "draft_steps: expected 1 to 4, the model's own number"),
        (CONFIG, Draft(2, 0), "draft_tokens: expected 1 to 23, for a model whose"),
        (CONFIG, Draft(2, 24), "draft_tokens: expected 1 to 23, for a model whose"),
    ],
    ids=lambda x: name(x) if hasattr(x, "block") else str(x)[:20],
)
def test_drafts_that_cannot_be(config, draft, message):
    with pytest.raises(UserError, match=message):
        Generator(config, mesh_of(), draft=draft)
