"""A server in this process, and requests to it."""

import dataclasses
import json
import socket
import threading
import urllib.error
import urllib.request
from typing import NamedTuple

import pytest
from cases import TINY, mesh_of, params_of

from diffeq_former.data.tokenizers import ByteTokenizer
from diffeq_former.inference.engine import Engine
from diffeq_former.inference.generate import Generator
from diffeq_former.inference.server import Server
from diffeq_former.inference.text import continue_texts

# More ids than the tokenizer has.
MODEL = dataclasses.replace(TINY, weights="shared", vocab_size=300, max_len=2048)
NAME = "tiny"


class Served(NamedTuple):
    url: str
    engine: Engine
    generator: Generator
    params: dict

    def connect(self) -> socket.socket:
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=600)

    def texts(self, prompts, **options):
        """What a text continues with, without a server."""
        options = {"max_new_tokens": 16} | options
        texts = continue_texts(
            self.generator, ByteTokenizer(), self.params, prompts, **options
        )
        return [t.removeprefix(p) for t, p in zip(texts, prompts, strict=True)]


@pytest.fixture(scope="session")
def served():
    tokenizer, params = ByteTokenizer(), params_of(MODEL)
    generator = Generator(MODEL, mesh_of(), tokenizer.vocab_size)
    engine = Engine(generator, params, tokenizer)
    server = Server(NAME, engine, tokenizer)
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    yield Served(url, engine, generator, params)
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="session")
def ask(served):
    """Status and JSON (or the events of a stream) of a request."""

    def request(path, content=None, method=None, headers=None):
        is_raw = content is None or isinstance(content, bytes)
        body = content if is_raw else json.dumps(content).encode()
        asked = urllib.request.Request(
            served.url + path, body, headers or {}, method=method
        )
        try:
            with urllib.request.urlopen(asked, timeout=600) as response:
                return response.status, _read(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _read(error)

    return request


@pytest.fixture(scope="session")
def complete(ask):
    return lambda **fields: ask("/v1/completions", fields)


def _read(response):
    text = response.read().decode()
    if response.headers["Content-Type"] == "application/json":
        return json.loads(text) if text else None
    events = text.removesuffix("\n\n").split("\n\n")
    assert all(event.startswith("data: ") for event in events), text
    events = [event.removeprefix("data: ") for event in events]
    return [e if e == "[DONE]" else json.loads(e) for e in events]
