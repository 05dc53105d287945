"""A server in this process, and requests to it."""

import contextlib
import dataclasses
import json
import socket
import threading
import urllib.error
import urllib.request
from typing import NamedTuple

import jax
import pytest
from cases import TINY, mesh_of, params_of

from diffeq_former.config import ModelConfig
from diffeq_former.conversion.hf_tokenizer import byte_tokenizer_json
from diffeq_former.data.tokenizers import ByteTokenizer, HFTokenizer, load_saved
from diffeq_former.inference.app import make_app
from diffeq_former.inference.chat_template import ChatTemplate
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
    config: ModelConfig = MODEL

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


@contextlib.contextmanager
def serving(tokenizer, template, **options):
    """A server of the model with a tokenizer; options are those of `make_app`."""
    params = params_of(MODEL)
    generator = Generator(MODEL, mesh_of(), tokenizer.vocab_size)
    engine = Engine(generator, params, tokenizer, num_slots=8)
    engine.start()
    server = Server(make_app(NAME, engine, tokenizer, template, **options), engine)
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    yield Served(url, engine, generator, params)
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="session")
def serve():
    return serving


@pytest.fixture(scope="session")
def served():
    tokenizer = ByteTokenizer()
    with serving(tokenizer, ChatTemplate(None, {}, tokenizer)) as served:
        yield served


def request(url, content=None, method=None, headers=None):
    """Return status and JSON (or the events of a stream) of a request."""
    is_raw = content is None or isinstance(content, bytes)
    body = content if is_raw else json.dumps(content).encode()
    asked = urllib.request.Request(url, body, headers or {}, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=600) as response:
            return response.status, _read(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _read(error)


@pytest.fixture(scope="session")
def request_to():
    return request


@pytest.fixture(scope="session")
def ask(served):
    return lambda path, *arguments, **options: request(
        served.url + path, *arguments, **options
    )


@pytest.fixture(scope="session")
def complete(ask):
    return lambda **fields: ask("/v1/completions", fields)


@pytest.fixture
def compiled():
    """The programs that are compiled, or read from JAX's cache, one entry each."""
    events = []

    def listen(event, duration, **_):
        if event.endswith("backend_compile_duration"):
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


# As of ChatML, but with a begin-of-text token.
TEMPLATE = """{{ bos_token }}
{%- for message in messages %}
    {%- if message.role == "developer" %}
        {{- raise_exception("no developers") }}
    {%- endif %}
    {{- "<|im_start|>" + message.role + "\\n" + message.content | trim }}
    {{- "<|im_end|>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|im_start|>assistant\\n" }}
{%- endif %}
"""


@pytest.fixture(scope="session")
def chat_folder(tmp_path_factory):
    """The tokenizer folder of a run: bytes, special tokens and a template."""
    from tokenizers import Tokenizer as Backend

    folder = tmp_path_factory.mktemp("chat")
    backend = Backend.from_str(byte_tokenizer_json())
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    (folder / HFTokenizer.FILE).write_text(backend.to_str())
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": {"content": "<|endoftext|>", "__type": "AddedToken"},
        "eos_token": "<|im_end|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="session")
def chat_tokenizer(chat_folder):
    return load_saved(chat_folder)


@pytest.fixture(scope="session")
def chat_template(chat_folder, chat_tokenizer):
    return ChatTemplate.read(chat_folder, chat_tokenizer)


@pytest.fixture(scope="session")
def chat_served(chat_tokenizer, chat_template):
    with serving(chat_tokenizer, chat_template) as served:
        yield served


@pytest.fixture(scope="session")
def chat(chat_served):
    url = f"{chat_served.url}/v1/chat/completions"
    return lambda **fields: request(url, fields)


def _read(response):
    text = response.read().decode()
    if response.headers["Content-Type"].startswith("text/plain"):
        return text
    if response.headers["Content-Type"] == "application/json":
        return json.loads(text) if text else None
    events = text.removesuffix("\n\n").split("\n\n")
    assert all(event.startswith("data: ") for event in events), text
    events = [event.removeprefix("data: ") for event in events]
    return [e if e == "[DONE]" else json.loads(e) for e in events]
