"""The protocol over real connections, against texts that no server has seen."""

import concurrent.futures
import json
import math

import pytest

from diffeq_former.data.tokenizers import ByteTokenizer
from diffeq_former.inference import bounds
from diffeq_former.inference.batch import Batch

PROMPT, GREEDY = "The list", {"temperature": 0}


def choices(answer):
    return [(c["text"], c["finish_reason"]) for c in answer["choices"]]


def test_a_text(served, complete):
    status, answer = complete(model="tiny", prompt=PROMPT, **GREEDY)
    assert status == 200
    assert choices(answer) == [(*served.texts([PROMPT], temperature=0.0), "length")]
    assert answer["object"] == "text_completion" and answer["model"] == "tiny"
    assert answer["choices"][0]["index"] == 0
    assert answer["usage"] == {
        "prompt_tokens": 9,  # with the one that precedes each text
        "completion_tokens": 16,
        "total_tokens": 25,
    }


def test_several_prompts_and_choices(served, complete):
    """Choice number i, of all of them, draws with seed + i."""
    options = {"temperature": 1.2, "top_p": 0.9, "max_tokens": 9}
    _, answer = complete(prompt=["ab", "c"], n=2, seed=2**32 - 1, **options)
    sampling = {"temperature": 1.2, "top_p": 0.9, "max_new_tokens": 9}
    seeds = (("ab", 2**32 - 1), ("ab", 0), ("c", 1), ("c", 2))
    expected = [served.texts([p], seed=seed, **sampling)[0] for p, seed in seeds]
    assert [c["text"] for c in answer["choices"]] == expected
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert len(set(expected)) == 4


def test_token_ids_are_prompts(complete):
    ids = list(PROMPT.encode())
    _, answer = complete(prompt=[ids, [97], [98]], **GREEDY)
    _, as_texts = complete(prompt=[PROMPT, "a", "b"], **GREEDY)
    assert choices(answer) == choices(as_texts)
    begin = ByteTokenizer().before  # not put before a prompt that begins with it
    for prompt in (ids, begin + ids, PROMPT):
        _, answer = complete(prompt=prompt, **GREEDY)
        assert choices(answer) == choices(as_texts)[:1]
        assert answer["usage"]["prompt_tokens"] == len(begin + ids)


def test_a_stop_string_ends_the_text(served, complete):
    [whole] = served.texts([PROMPT], temperature=0.0)
    stop = whole[6:8]
    _, answer = complete(prompt=PROMPT, stop=stop, **GREEDY)
    assert choices(answer) == [(whole.partition(stop)[0], "stop")]
    assert answer["usage"]["completion_tokens"] < 16
    assert (
        complete(prompt=PROMPT, stop=["no such", stop], **GREEDY)[1]["choices"]
        == (answer["choices"])
    )


def test_a_stop_token_ends_the_text(served, complete):
    [whole] = served.texts([PROMPT], temperature=0.0)
    stop = whole[4]
    expected = whole.partition(stop)[0]
    fields = {"prompt": PROMPT, "stop_token_ids": [3, ord(stop)]} | GREEDY
    _, answer = complete(**fields)
    assert choices(answer) == [(expected, "stop")]
    assert answer["usage"]["completion_tokens"] == len(expected) > 0
    _, events = complete(**fields, stream=True)
    streamed = [choices(event) for event in events[:-1]]
    assert streamed[-1][0][1] == "stop"
    assert "".join(text for [(text, _)] in streamed) == expected


@pytest.mark.parametrize("field", [{"top_k": 2}, {"min_p": 0.7}], ids=str)
def test_sampling_fields_of_other_servers(served, complete, field):
    fields = {"temperature": 2.0, "seed": 3}
    _, answer = complete(prompt=PROMPT, **fields, **field)
    [text] = served.texts([PROMPT], **fields, **field)
    assert choices(answer) == [(text, "length")]
    assert served.texts([PROMPT], **fields) != [text]


def test_echo_puts_the_prompt_before(served, complete):
    [text] = served.texts([PROMPT], temperature=0.0)
    _, answer = complete(prompt=PROMPT, echo=True, **GREEDY)
    assert choices(answer) == [(PROMPT + text, "length")]


def test_a_stream_is_the_same_text(complete):
    fields = {"prompt": ["ab", "c", ""], "max_tokens": 20, "seed": 4}
    _, answer = complete(**fields)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    status, [*events, last, done] = complete(**fields, **options)
    assert (status, done) == (200, "[DONE]")
    assert (last["choices"], last["usage"]) == ([], answer["usage"])
    for choice in answer["choices"]:
        parts = [
            c for e in events for c in e["choices"] if c["index"] == choice["index"]
        ]
        assert "".join(part["text"] for part in parts) == choice["text"]
        reasons = [part["finish_reason"] for part in parts]
        assert reasons == [None] * (len(parts) - 1) + [choice["finish_reason"]]
    assert len(events) > 2, "nothing was streamed"
    assert len({event["id"] for event in [*events, last]}) == 1


def test_without_a_seed_each_text_is_another(complete):
    texts = {complete(prompt="a")[1]["choices"][0]["text"] for _ in range(3)}
    assert len(texts) == 3


def test_requests_at_one_time(served, complete):
    """Each gets what it would get alone, whatever goes with it."""
    fields = [
        {"prompt": "ab" * i, "temperature": i % 3 / 2, "seed": i, "max_tokens": 3 + i}
        for i in range(4)
    ]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda f: complete(**f), fields))
    for field, (status, answer) in zip(fields, answers, strict=True):
        options = {"temperature": field["temperature"], "seed": field["seed"]}
        [text] = served.texts(
            [field["prompt"]], max_new_tokens=field["max_tokens"], **options
        )
        assert (status, answer["choices"][0]["text"]) == (200, text)


def test_models_and_health(ask):
    assert ask("/health") == (200, {"status": "ok"})
    status, answer = ask("/v1/models?after=1")
    assert (status, answer["object"], answer["data"][0]["id"]) == (200, "list", "tiny")
    assert ask("/v1/models/tiny") == (200, answer["data"][0])
    status, answer = ask("/v1/models/openai/gpt-4")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    message = "model: expected 'tiny', got 'openai/gpt-4'"
    assert answer["error"]["message"] == message


@pytest.mark.parametrize(
    ("wrong", "field", "words"),
    [
        ({"prompt": None}, "prompt", "field required"),
        ({"prompt": []}, "prompt", "expected a string, a list of strings"),
        ({"prompt": {"a": 1}}, "prompt", "expected a string, a list of strings"),
        ({"prompt": ["a", 5]}, "prompt", "token ids below 257"),
        ({"prompt": ["a", []]}, "prompt", "token ids below 257"),
        ({"prompt": [5, 257]}, "prompt", "token ids below 257"),
        ({"prompt": [-1]}, "prompt", "token ids below 257"),
        ({"prompt": [True]}, "prompt", "token ids below 257"),
        ({"prompt": "a" * 2040}, "max_tokens", "more than the model's max_len of 2048"),
        ({"prompt": "a" * 2048}, "prompt", "2049 tokens, 1 of them before the text,"),
        ({"prompt": [97] * 2048}, "prompt", "shorten it to at most 2048 tokens"),
        ({"prompt": ["a", [256] * 2049]}, "prompt", "2049 tokens, 1 of them before"),
        ({"prompt": "a" * 9000}, "prompt", "at least 8177 tokens, 1 of them before"),
        ({"max_tokens": 2048}, "max_tokens", "2048 new tokens after 2 are more than"),
        ({"max_tokens": 2048}, "max_tokens", "ask for at most 2047 new tokens"),
        ({"max_tokens": 0}, "max_tokens", "1 or more, or 0 with echo=true"),
        ({"max_tokens": -1}, "max_tokens", "greater than or equal to 0"),
        ({"max_tokens": 1.5}, "max_tokens", "a valid integer"),
        ({"max_tokens": True}, "max_tokens", "a valid integer"),
        ({"temperature": -1}, "temperature", "greater than or equal to 0"),
        ({"temperature": "hot"}, "temperature", "a valid number"),
        ({"temperature": math.nan}, "temperature", "a finite number"),
        ({"temperature": 10**400}, "temperature", "a valid number"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"top_p": 2}, "top_p", "less than or equal to 1"),
        ({"top_k": -1}, "top_k", "greater than or equal to 0"),
        ({"min_p": 1.5}, "min_p", "less than or equal to 1"),
        ({"stop_token_ids": 3}, "stop_token_ids", "a valid array"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids", "a valid integer"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"n": 65}, "n", "less than or equal to 64"),
        ({"n": 33, "prompt": ["a", "b"]}, "n", "at most 64 choices in all"),
        ({"stop": ["a", ""]}, "stop", "stop.1: string should have at least 1"),
        ({"stop": [1]}, "stop", "stop.0: input should be a valid string"),
        ({"stop": 3}, "stop", "a valid array"),
        ({"seed": "x"}, "seed", "a valid integer"),
        ({"seed": 2**64}, "seed", "less than 9223372036854775808"),
        ({"stream": 1}, "stream", "a valid boolean"),
        ({"echo": "yes"}, "echo", "a valid boolean"),
        ({"stream_options": {"other": 1}}, "stream_options", "options.other: unknown"),
        ({"logprobs": -1}, "logprobs", "greater than or equal to 0"),
        ({"logprobs": 21}, "logprobs", "less than or equal to 20"),
        ({"logprobs": True}, "logprobs", "a valid integer"),
        ({"top_logprobs": 3}, "top_logprobs", "unknown or not supported"),
        ({"best_of": 3}, "best_of", "not supported; leave it out"),
        ({"suffix": "x"}, "suffix", "not supported; leave it out"),
        ({"frequency_penalty": 2.1}, "frequency_penalty", "less than or equal to 2"),
        ({"presence_penalty": -3}, "presence_penalty", "greater than or equal to -2"),
        ({"max_token": 3}, "max_token", "unknown or not supported"),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_wrong_requests(complete, wrong, field, words, stream):
    status, answer = complete(**({"prompt": "a", "stream": stream} | wrong))
    assert (status, answer["error"]["param"]) == (400, field), answer
    assert answer["error"]["message"].startswith(field)
    assert words in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[1]", b"\xff", b'{"prompt": "\\ud800"}', b"[" * 100_000],
    ids=lambda body: str(body[:20]),
)
def test_bodies_that_are_no_request(ask, body):
    status, answer = ask("/v1/completions", body)
    assert status == 400 and "the body" in answer["error"]["message"]


def test_another_model(complete):
    status, answer = complete(prompt="a", model="gpt-4")
    assert (status, answer["error"]["param"]) == (404, "model")
    assert answer["error"]["code"] == "model_not_found"


def test_unknown_paths_and_methods(ask):
    for path in ("/", "/v1", "/v1/embeddings"):
        status, answer = ask(path, {"prompt": "a"})
        assert (status, answer["error"]["message"]) == (404, f"POST {path}: Not Found")
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"):
        status, answer = ask("/v1/completions", method=method)
        assert status == 405 and method in answer["error"]["message"]
    assert ask("/health", {"a": 1})[0] == 405
    assert ask("/health", method="HEAD") == (200, None)


def test_a_body_that_is_too_large(ask):
    body = json.dumps({"prompt": "a" * bounds.LONGEST_BODY}).encode()
    status, answer = ask("/v1/completions", body)
    assert status == 413 and "1048576 bytes" in answer["error"]["message"]


@pytest.mark.parametrize(
    "request_text",
    [
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        "no request at all\r\n\r\n",
        # The last byte is the first too many. Any that follow may be unread when the
        # connection is closed; the kernel then resets it, and the answer can be lost.
        "GET /".ljust(2**16 + 1, "a"),
    ],
    ids=["length", "text", "long"],
)
def test_wrong_http(served, request_text):
    with served.connect() as connection:
        connection.sendall(request_text.encode())
        answer = connection.makefile("rb").read().decode()
    assert answer.startswith("HTTP/1.1 400 ")


def test_a_client_that_says_nothing_holds_nobody_up(served, complete):
    with served.connect(), served.connect() as half:
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Len")
        assert complete(prompt="a", max_tokens=1)[0] == 200


def test_a_failure_is_a_500_and_the_next_request_is_answered(
    complete, monkeypatch, capsys
):
    def fail(*_):
        raise RuntimeError("out of\nmemory")

    with monkeypatch.context() as patch:
        patch.setattr(Batch, "step", fail)
        for stream in (False, True):
            status, answer = complete(prompt="a", stream=stream)
            assert (status, answer["error"]["type"]) == (500, "server_error")
    failed = "generation failed: RuntimeError: out of memory\n"
    assert capsys.readouterr().err == 2 * failed
    assert complete(prompt="a")[0] == 200


def test_a_failure_within_a_stream_ends_it_with_an_error(complete, monkeypatch, capsys):
    step = Batch.step

    def fail(batch):
        step(batch)
        if any(len(x.new) > 8 for x in batch.sequences):
            raise RuntimeError("late")

    monkeypatch.setattr(Batch, "step", fail)
    status, [first, *_, last] = complete(
        prompt="a", max_tokens=40, stream=True, **GREEDY
    )
    assert status == 200 and first["choices"][0]["text"]
    assert last["error"]["message"] == "generation failed"
    assert capsys.readouterr().err == "generation failed: RuntimeError: late\n"
