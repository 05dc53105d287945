"""Bounds of connections, bodies and prompts; other clients are served meanwhile."""

import contextlib
import json
import time

import pytest

from diffeq_former.data.tokenizers import ByteTokenizer
from diffeq_former.errors import UserError
from diffeq_former.inference import bounds
from diffeq_former.inference.prompts import read_prompt

POST = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n"


def is_ended(connection) -> bool:
    """Whether the server has closed it, which it does without a response here."""
    with contextlib.suppress(ConnectionResetError):
        return connection.recv(1000) == b""
    return True


@pytest.mark.parametrize("sent", [b"", b"G", POST, b"GET /health HTTP/1.1\r\nHost: a"])
def test_headers_that_do_not_arrive(served, ask, monkeypatch, sent):
    monkeypatch.setattr(bounds, "SECONDS_FOR_HEADERS", 0.2)
    with served.connect() as connection:
        connection.sendall(sent)
        assert is_ended(connection)
    assert ask("/health")[0] == 200


def test_headers_that_do_not_arrive_after_a_response(served, monkeypatch):
    monkeypatch.setattr(bounds, "SECONDS_FOR_HEADERS", 0.2)
    with served.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"GET")
        assert is_ended(connection)


def test_a_body_that_does_not_arrive(served, complete, monkeypatch):
    monkeypatch.setattr(bounds, "SECONDS_FOR_BODY", 0.2)
    with served.connect() as connection:
        connection.sendall(POST + b"Content-Length: 99\r\n\r\n{")
        answer = connection.makefile("rb").read(1000).decode()
        assert answer.startswith("HTTP/1.1 408 ")
        assert "the body did not arrive within 0.2 s" in answer
    assert complete(prompt="a", max_tokens=1)[0] == 200


def test_more_connections_than_that(served, ask, monkeypatch):
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(served.connect()) for _ in range(3)]
        assert ask("/health")[0] == 200  # all of them are counted by now
        monkeypatch.setattr(bounds, "MOST_CONNECTIONS", 3)
        assert is_ended(stack.enter_context(served.connect()))
        held.pop().close()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                assert ask("/health")[0] == 200
                return
    raise AssertionError("a connection that was closed still counts")


def test_bodies_in_flight(served, complete, monkeypatch):
    monkeypatch.setattr(bounds, "MOST_BODY_BYTES", 3000)
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            connection = stack.enter_context(served.connect())
            connection.sendall(POST + b"Content-Length: 2000\r\n\r\n" + b" " * 1400)
        deadline = time.monotonic() + 60
        while (status := complete(prompt="a" * 500, max_tokens=1)[0]) == 200:
            assert time.monotonic() < deadline
        assert status == 429
    while complete(prompt="a" * 500, max_tokens=1)[0] != 200:
        assert time.monotonic() < deadline


GET = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"


def test_requests_that_are_sent_at_once_are_answered_in_turn(served):
    with served.connect() as connection:
        connection.sendall(3 * GET)
        answers = b""
        while answers.count(b"HTTP/1.1 200 ") < 3:
            answers += connection.recv(1000)


def test_too_much_before_a_response(served, monkeypatch):
    monkeypatch.setattr(bounds, "MOST_PIPELINED", 1000)
    body = json.dumps({"prompt": "a", "max_tokens": 1500}).encode()
    with served.connect() as connection:
        length = f"Content-Length: {len(body)}\r\n\r\n".encode()
        connection.sendall(POST + length + body + 50 * GET)
        assert is_ended(connection)


class Counting(ByteTokenizer):
    """Counts the characters that it encodes."""

    num_characters = 0

    def encode(self, text):
        self.num_characters += len(text)
        return super().encode(text)


@pytest.mark.parametrize(
    ("prompt", "found"),
    [("a" * 1_000_000, "at least 385"), ([97] * 100_000, "100001")],
    ids=["text", "ids"],
)
def test_a_prompt_is_not_read_to_its_end(prompt, found):
    tokenizer = Counting()
    with pytest.raises(UserError) as error:
        read_prompt(prompt, tokenizer, 100)
    assert str(error.value) == (
        f"{found} tokens, 1 of them before the text, are more than the model's"
        " max_len of 100; shorten it to at most 100 tokens"
    )
    assert tokenizer.num_characters <= 400


@pytest.mark.parametrize("length", [99, 100, 400, 401, 9900])
def test_long_texts_of_few_tokens_are_prompts(length):
    """One token for each hundred characters."""

    class Coarse(ByteTokenizer):
        def encode(self, text):
            return [97] * (len(text) // 100)

    ids, _ = read_prompt("a" * length, Coarse(), 100)
    assert ids == [256] + [97] * (length // 100)


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("a", [256, 10, 97]),
        ([97], [256, 10, 97]),
        ([256, 10, 97], [256, 10, 97]),
        ([256, 10], [256, 10]),
        ([256, 97], [256, 10, 256, 97]),
        ([10, 97], [256, 10, 10, 97]),
    ],
    ids=str,
)
def test_ids_that_begin_as_texts_do_get_no_second_beginning(prompt, ids):
    tokenizer = ByteTokenizer()
    tokenizer.opening = (256, 10)
    assert read_prompt(prompt, tokenizer, 3 + len(ids)).ids == ids
