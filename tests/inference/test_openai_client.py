"""The client that most who serve by this protocol use."""

import pytest

openai = pytest.importorskip("openai")

OPTIONS = {"model": "tiny", "prompt": "The list", "seed": 3}


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(
        base_url=f"{served.url}/v1", api_key="any", max_retries=0
    ) as client:
        yield client


def test_texts(served, client):
    answer = client.completions.create(
        **OPTIONS, n=3, max_tokens=12, temperature=0.8, top_p=0.9, stop=["no such"]
    )
    sampling = {"temperature": 0.8, "top_p": 0.9, "max_new_tokens": 12}
    expected = [served.texts(["The list"], seed=s, **sampling)[0] for s in (3, 4, 5)]
    assert [choice.text for choice in answer.choices] == expected
    assert answer.usage.completion_tokens == 36 and answer.model == "tiny"


def test_penalties(served, client):
    penalties = {"presence_penalty": 1.5, "frequency_penalty": -0.5}
    answer = client.completions.create(
        **OPTIONS, max_tokens=40, temperature=0, **penalties
    )
    options = {"max_new_tokens": 40, "temperature": 0.0}
    [choice] = answer.choices
    assert [choice.text] == served.texts(["The list"], **options, **penalties)
    assert [choice.text] != served.texts(["The list"], **options)


def test_streams(client):
    whole = client.completions.create(**OPTIONS, max_tokens=30)
    with client.completions.create(
        **OPTIONS, max_tokens=30, stream=True, stream_options={"include_usage": True}
    ) as stream:
        *events, last = stream
    text = "".join(event.choices[0].text for event in events)
    assert len(events) > 1 and text == whole.choices[0].text
    assert events[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert last.usage == whole.usage


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_errors(client):
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(**OPTIONS, max_tokens=5000)
    assert raised.value.param == "max_tokens"
    with pytest.raises(openai.NotFoundError) as raised:
        client.completions.create(**(OPTIONS | {"model": "other"}))
    assert raised.value.code == "model_not_found"
