"""Log-probabilities in responses, against the log-softmax of the full forward pass."""

import jax
import numpy as np
import pytest
from cases import mesh_of

from diffeq_former.inference.likelihood import make_score
from diffeq_former.inference.logprobs import ScoredTexts, for_completion
from diffeq_former.inference.scores import TokenScore
from diffeq_former.models.transformer import Transformer

openai = pytest.importorskip("openai")

BEGIN, VOCAB = 256, 257  # of the byte tokenizer
PROMPT = "The list of all"


@pytest.fixture(scope="module")
def client(served):
    url = f"{served.url}/v1"
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def complete(client):
    def complete(**fields):
        return client.completions.create(**{"model": "tiny", "temperature": 0} | fields)

    return complete


@pytest.fixture(scope="module")
def log_p(served):
    """The log-probabilities after each token, of a text of any length up to 63."""
    model = Transformer(served.config)
    apply = jax.jit(model.apply)

    def log_p(ids):
        tokens_1L = np.zeros((1, 64), np.int32)
        tokens_1L[0, : len(ids)] = ids
        [logits_LV] = apply({"params": served.params}, tokens_1L)
        return np.asarray(jax.nn.log_softmax(logits_LV))

    return log_p


def text_of(token):
    return bytes([token] if token < 256 else []).decode("utf-8", "replace")


def check(found, ids, log_p_LV, num_top):
    """Compare scores of tokens with those of the positions before them."""
    ids = list(ids)
    assert found.tokens == [text_of(i) for i in ids]
    expected = [log_p_V[i] for i, log_p_V in zip(ids, log_p_LV, strict=True)]
    np.testing.assert_allclose(found.token_logprobs, expected, rtol=0, atol=1e-4)
    for i, top, log_p_V in zip(ids, found.top_logprobs, log_p_LV, strict=True):
        wanted = {}
        for token in (*np.argsort(-log_p_V[:VOCAB])[:num_top], i):
            wanted.setdefault(text_of(token), log_p_V[token])
        assert top == pytest.approx(wanted, abs=1e-4)


def test_of_a_completion(complete, log_p):
    [choice] = complete(prompt=PROMPT, logprobs=3, max_tokens=12).choices
    before = [BEGIN, *PROMPT.encode()]
    found = choice.logprobs
    ids = before
    for _ in range(12):  # greedy
        ids = [*ids, int(log_p(ids)[len(ids) - 1, :VOCAB].argmax())]
    new = ids[len(before) :]
    check(found, new, log_p(ids)[len(before) - 1 : len(ids) - 1], 3)
    lengths = [len(text_of(i)) for i in new]
    offsets = len(PROMPT) + np.cumsum([0, *lengths])[:-1]
    assert found.text_offset == offsets.tolist()


def test_temperature_does_not_change_them(complete):
    """Only what is sampled, whose scores are among those of the most likely tokens."""
    options = {"prompt": PROMPT, "logprobs": 20, "max_tokens": 1}
    options["extra_body"] = {"top_k": 3}
    [greedy], *others = (
        complete(temperature=t, seed=s, **options).choices
        for t, s in ((0, 0), (2, 1), (2, 2), (2, 3))
    )
    [top] = greedy.logprobs.top_logprobs
    for [other] in others:
        [text], [score] = other.logprobs.tokens, other.logprobs.token_logprobs
        assert score == pytest.approx(top[text], abs=1e-5)


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_scores_of_a_prompt(complete, log_p, max_tokens):
    """A text, ids, and ids that begin with the token before each text."""
    ids = list(PROMPT.encode())
    options = {"echo": True, "logprobs": 2, "max_tokens": max_tokens}
    answer = complete(prompt=[ids, [BEGIN, *ids]], **options)
    [as_text] = complete(prompt=PROMPT, **options).choices
    scored = log_p([BEGIN, *ids])
    for choice, has_begin in zip((as_text, *answer.choices), (0, 0, 1), strict=True):
        found = choice.logprobs
        if has_begin:
            assert found.token_logprobs[0] is found.top_logprobs[0] is None
            assert found.text_offset[:2] == [0, 0]
        part = {
            name: values[has_begin : has_begin + len(ids)]
            for name, values in found.model_dump().items()
        }
        check(type(found)(**part), ids, scored[: len(ids)], 2)
        assert len(found.tokens) == has_begin + len(ids) + max_tokens
        assert choice.finish_reason == "length" and choice.text.startswith(PROMPT)
    assert answer.usage.completion_tokens == 2 * max_tokens


def test_log_likelihoods_as_the_evaluation_harness_reads_them(served, complete):
    """It sends token ids, and asks for one token that it ignores."""
    pairs = [([BEGIN], list(b"ab")), ([97, 98], [99, 100, 101]), ([9] * 20, [3])]
    likely = complete(prompt=[pairs[1][0]], max_tokens=3, logprobs=0)
    pairs.append((pairs[1][0], [int(x) for x in likely.choices[0].text.encode()]))
    answer = complete(
        prompt=[a + b for a, b in pairs], echo=True, max_tokens=1, logprobs=1, seed=1
    )
    found = []
    for choice, (context, _) in zip(answer.choices, pairs, strict=True):
        scores, tops = (
            values[len(context) : -1]
            for values in (choice.logprobs.token_logprobs, choice.logprobs.top_logprobs)
        )
        greedy = all(s == max(t.values()) for s, t in zip(scores, tops, strict=True))
        found.append((sum(scores), greedy))
    score = make_score(served.config, mesh_of(), 2)
    with_begin = [(a if a[0] == BEGIN else [BEGIN, *a], b) for a, b in pairs]
    expected = score(served.params, with_begin)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    np.testing.assert_allclose(
        *([x for x, _ in y] for y in (found, expected)), atol=1e-4
    )


def test_a_stream_has_the_same(client, complete):
    options = {"prompt": ["ab", PROMPT], "echo": True, "logprobs": 1, "max_tokens": 20}
    whole = complete(**options)
    parts = [{}, {}]
    for event in complete(**options, stream=True):
        for choice in event.choices:
            for name, values in choice.logprobs.model_dump().items():
                parts[choice.index].setdefault(name, []).extend(values)
    assert parts == [choice.logprobs.model_dump() for choice in whole.choices]


def test_of_a_text_with_a_stop_string(complete):
    [whole] = complete(prompt=PROMPT, max_tokens=16, logprobs=0).choices
    stop = whole.logprobs.tokens[5]
    place = whole.logprobs.tokens.index(stop)
    [choice] = complete(prompt=PROMPT, max_tokens=16, logprobs=0, stop=stop).choices
    assert choice.logprobs.tokens == whole.logprobs.tokens[: place + 1]


def test_of_a_chat(chat_served):
    messages = [{"role": "user", "content": "a"}]
    options = {"model": "tiny", "messages": messages, "temperature": 0, "seed": 1}
    url = f"{chat_served.url}/v1"
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as client:
        create = client.chat.completions.create
        [with_top] = create(
            **options, max_tokens=5, logprobs=True, top_logprobs=2
        ).choices
        [plain] = create(**options, max_tokens=5).choices
        with pytest.raises(openai.BadRequestError) as raised:
            create(**options, top_logprobs=2)
    assert plain.logprobs is None and raised.value.param == "top_logprobs"
    assert len(with_top.logprobs.content) == 5
    for token in with_top.logprobs.content:
        first, second = token.top_logprobs
        assert first.logprob == token.logprob >= second.logprob
        assert first.token == token.token
        is_whole = "\N{REPLACEMENT CHARACTER}" not in token.token
        assert token.bytes == (list(token.token.encode()) if is_whole else None)


def test_the_most_likely_of_equal_texts_counts():
    class Same:
        def decode(self, ids):
            return "a"

    scores = [TokenScore(5, -2.0, [(4, -1.0), (5, -2.0)])]
    texts = ScoredTexts(Same(), [3], 1, echo=False).update(scores)
    assert for_completion(texts)["top_logprobs"] == [{"a": -1.0}]
