"""Metrics, as the client library of Prometheus reads them."""

import urllib.request

import pytest

from diffeq_former.inference.metrics import BOUNDS

parser = pytest.importorskip("prometheus_client.parser")

CHAT = [{"role": "user", "content": "a"}]


@pytest.fixture
def fresh(serve, chat_tokenizer, chat_template):
    with serve(chat_tokenizer, chat_template) as served:
        yield served


def read(served):
    """Return the samples by name and labels."""
    with urllib.request.urlopen(f"{served.url}/metrics", timeout=600) as response:
        media_type = "text/plain; version=0.0.4; charset=utf-8"
        assert response.headers["Content-Type"] == media_type
        text = response.read().decode()
    families = list(parser.text_string_to_metric_families(text))
    assert all(x.documentation and x.type != "unknown" for x in families)
    samples = [sample for family in families for sample in family.samples]
    return {
        (s.name.removeprefix("diffeq_former_"), *s.labels.values()): s.value
        for s in samples
    }


def test_a_new_server_has_counted_nothing(fresh):
    samples = read(fresh)
    assert not any(samples.values())
    bounds = [label for name, *label in samples if name.endswith("_bucket")]
    assert bounds == [[str(bound)] for bound in BOUNDS] + [["+Inf"]]


def test_requests_and_tokens_are_counted(fresh, request_to):
    ids, options = [97] * 5, {"n": 2, "max_tokens": 9, "temperature": 0}
    _, answer = request_to(f"{fresh.url}/v1/completions", {"prompt": ids} | options)
    chat = f"{fresh.url}/v1/chat/completions"
    _, events = request_to(chat, {"messages": CHAT, "stream": True} | options)
    assert events[-1] == "[DONE]"
    assert request_to(chat, {"messages": []})[0] == 400
    for path in ("/v1/models/tiny", "/a", "/b"):
        request_to(fresh.url + path)
    samples = read(fresh)
    assert {key[1:]: x for key, x in samples.items() if key[0] == "requests_total"} == {
        ("/v1/chat/completions", "200"): 1,
        ("/v1/chat/completions", "400"): 1,
        ("/v1/completions", "200"): 1,
        ("other", "200"): 1,
        ("other", "404"): 2,
    }
    assert answer["usage"]["completion_tokens"] == 18
    assert samples[("new_tokens_total",)] == 36
    assert samples[("prompt_tokens_total",)] > 6
    seconds, count = (
        samples[(f"time_to_first_text_seconds_{x}",)] for x in ("sum", "count")
    )
    assert count == 2 == samples[("time_to_first_text_seconds_bucket", "+Inf")]
    assert 0 < seconds
    below = [samples[("time_to_first_text_seconds_bucket", str(b))] for b in BOUNDS]
    assert below == sorted(below)


def test_the_length_of_the_queue(served, monkeypatch):
    assert read(served)[("waiting_requests",)] == 0
    monkeypatch.setattr(type(served.engine), "num_waiting", 7)
    assert read(served)[("waiting_requests",)] == 7
