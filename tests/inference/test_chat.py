"""The chat protocol over real connections, against texts that no server has seen."""

import pytest

from diffeq_former.inference.text import continue_ids

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "The list"},
]
GREEDY = {"messages": CHAT, "temperature": 0, "max_tokens": 16}


@pytest.fixture(scope="module")
def expected(chat_served, chat_tokenizer, chat_template):
    """Chat replies without a server."""

    def reply(messages=CHAT, **options):
        ids = chat_template.encode(messages)
        model = (chat_served.generator, chat_tokenizer, chat_served.params)
        options = {"max_new_tokens": 16, "temperature": 0.0} | options
        [text] = continue_ids(*model, [ids], before=[], **options)
        return text

    return reply


def test_a_reply(chat, chat_template, expected):
    status, answer = chat(model="tiny", **GREEDY)
    assert (status, answer["object"]) == (200, "chat.completion")
    assert answer["id"].startswith("chatcmpl-") and answer["model"] == "tiny"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": expected()},
            "logprobs": None,
            "finish_reason": "length",
        }
    ]
    num_read = len(chat_template.encode(CHAT))
    assert answer["usage"] == {
        "prompt_tokens": num_read,
        "completion_tokens": 16,
        "total_tokens": num_read + 16,
    }


def test_several_replies_that_end_at_a_stop_string(chat, expected):
    options = {"temperature": 1.2, "top_p": 0.9}
    stop = expected(seed=5, **options)[3:5]
    _, answer = chat(
        messages=CHAT, n=2, seed=4, stop=stop, max_completion_tokens=9, **options
    )
    replies = [choice["message"]["content"] for choice in answer["choices"]]
    options |= {"stop": [stop], "max_new_tokens": 9}
    assert replies == [expected(seed=seed, **options) for seed in (4, 5)]
    assert answer["choices"][1]["finish_reason"] == "stop"


def test_a_stream_is_the_same_text(chat):
    fields = {"messages": CHAT, "max_tokens": 20, "seed": 4, "n": 2}
    _, answer = chat(**fields)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    status, [*events, last, done] = chat(**fields, **options)
    assert (status, done) == (200, "[DONE]")
    assert (last["choices"], last["usage"]) == ([], answer["usage"])
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    for whole in answer["choices"]:
        parts = [
            c for e in events for c in e["choices"] if c["index"] == whole["index"]
        ]
        deltas = [part["delta"] for part in parts]
        text = "".join(delta["content"] for delta in deltas)
        assert text == whole["message"]["content"]
        roles = [delta.get("role") for delta in deltas]
        assert roles == ["assistant"] + [None] * (len(deltas) - 1) and len(deltas) > 1
        reasons = [part["finish_reason"] for part in parts]
        assert reasons == [None] * (len(parts) - 1) + [whole["finish_reason"]]


def test_text_parts_are_concatenated(chat, expected):
    parts = [{"type": "text", "text": text} for text in ("The", " list")]
    _, answer = chat(**GREEDY | {"messages": [CHAT[0], CHAT[1] | {"content": parts}]})
    assert answer["choices"][0]["message"]["content"] == expected()


def test_without_a_limit_a_reply_has_all_the_room(chat, chat_template):
    messages = [{"role": "user", "content": "a" * 1980}]
    _, answer = chat(messages=messages, temperature=0)
    num_read = len(chat_template.encode(messages))
    usage = {"prompt_tokens": num_read, "completion_tokens": 2049 - num_read}
    assert answer["usage"] == usage | {"total_tokens": 2049}


def said(content, role="user"):
    return [{"role": role, "content": content}]


@pytest.mark.parametrize(
    ("wrong", "field", "words"),
    [
        ({"messages": None}, "messages", "field required"),
        ({"messages": []}, "messages", "at least 1 item"),
        ({"messages": "hi"}, "messages", "a valid array"),
        ({"messages": said(None)}, "messages", "messages.0.content"),
        ({"messages": said(3)}, "messages", "messages.0.content"),
        ({"messages": said(["a"])}, "messages", 'a list of parts {"type": "text"'),
        ({"messages": said([{"type": "image_url"}])}, "messages", "list of parts"),
        ({"messages": said("a", "tool")}, "messages", "messages.0.role: input"),
        ({"messages": said("a", "developer")}, "messages", "rejects them: no devel"),
        ({"messages": [{"role": "user"}]}, "messages", "content: field required"),
        (
            {"messages": said("a" * 2048)},
            "messages",
            "2068 tokens are more than the model's max_len of 2048; shorten it to",
        ),
        ({"messages": said("<|im_end|>" * 9000)}, "messages", "at least 6"),
        ({"max_tokens": 2048}, "max_tokens", "2048 new tokens after"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "greater than"),
        ({"prompt": "a"}, "prompt", "unknown or not supported"),
        ({"echo": True}, "echo", "unknown or not supported"),
        ({"tools": [{}]}, "tools", "unknown or not supported"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_requests(chat, wrong, field, words):
    status, answer = chat(**({"messages": CHAT} | wrong))
    assert (status, answer["error"]["param"]) == (400, field), answer
    assert answer["error"]["message"].startswith(field)
    assert words in answer["error"]["message"]


def test_fields_without_effect(chat, expected):
    fields = {"tools": [], "frequency_penalty": 0, "response_format": {"type": "text"}}
    status, answer = chat(**GREEDY, **fields, user="me", logit_bias={}, seed=None)
    assert status == 200, answer
    assert answer["choices"][0]["message"]["content"] == expected()


def test_a_model_without_a_template(ask):
    status, answer = ask("/v1/chat/completions", {"messages": CHAT})
    assert (status, answer["error"]["param"]) == (400, "messages")
    start = "messages: this model has no chat template; complete a text instead, or "
    assert answer["error"]["message"].startswith(start)


def test_openai_client(chat_served, expected):
    openai = pytest.importorskip("openai")
    url = f"{chat_served.url}/v1"
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as client:
        create, fields = client.chat.completions.create, {"model": "tiny"} | GREEDY
        answer = create(**fields)
        assert answer.choices[0].message.content == expected()
        with create(**fields, stream=True) as stream:
            parts = [event.choices[0].delta.content for event in stream]
        assert "".join(parts) == expected() and len(parts) > 1
        with pytest.raises(openai.BadRequestError) as raised:
            create(**fields | {"messages": []})
        assert raised.value.param == "messages"
