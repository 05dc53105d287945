"""Special tokens in the texts of prompts, which are read as tokens on request."""

import functools

import pytest
from inference.conftest import request

from diffeq_former.inference.prompts import read_prompt

MESSAGES = [{"role": "user", "content": "The list"}]
GREEDY = {"temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module")
def post(chat_served):
    return lambda path, **fields: request(f"{chat_served.url}/v1/{path}", fields)


def test_the_text_of_a_chat_is_completed_like_the_chat(post, chat_template):
    _, reply = post("chat/completions", messages=MESSAGES, **GREEDY)
    text = chat_template.render(MESSAGES)
    status, answer = post("completions", prompt=text, parse_special=True, **GREEDY)
    assert status == 200, answer
    assert answer["choices"][0]["text"] == reply["choices"][0]["message"]["content"]
    assert answer["usage"] == reply["usage"]
    _, as_text = post("completions", prompt=text, **GREEDY)
    assert as_text["usage"]["prompt_tokens"] > answer["usage"]["prompt_tokens"]


def test_wrong_requests(post):
    status, answer = post("completions", prompt="a", parse_special="yes")
    assert (status, answer["error"]["param"]) == (400, "parse_special")
    prompts = {"prompt": "<|im_end|>" * 9000, "parse_special": True}
    status, answer = post("completions", **prompts)
    assert (status, answer["error"]["param"]) == (400, "prompt")
    assert "tokens" in answer["error"]["message"]


def test_a_text_that_begins_with_no_special_token_gets_what_all_texts_get(
    chat_tokenizer, chat_template
):
    special_tokens = chat_template.special_tokens
    before, end = chat_tokenizer.before, special_tokens.ids["<|im_end|>"]
    read = functools.partial(read_prompt, tokenizer=chat_tokenizer, max_len=99)
    assert read("a<|im_end|>", special_tokens=special_tokens) == (
        [*before, ord("a"), end],
        len(before),
    )
    assert read("<|im_end|>a", special_tokens=special_tokens) == ([end, ord("a")], 0)
    assert len(read("<|im_end|>a").ids) == len(before) + 11
