"""tools/serve.py as a user runs it."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest
from cases import mesh_of
from runs import ROOT
from several import free_port

from diffeq_former.inference.generate import Generator
from diffeq_former.inference.text import continue_ids, make_continue

TOOL = "serve.py"


@contextlib.contextmanager
def serving(*flags):
    with subprocess.Popen(
        [sys.executable, ROOT / "tools" / TOOL, "--port=0", "--num_slots=2", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def post(ready, path="/v1/completions", **fields):
    url = f"http://{ready['host']}:{ready['port']}{path}"
    body = json.dumps(fields).encode()
    with urllib.request.urlopen(url, body, timeout=600) as response:
        return json.load(response)


def is_open(ready):
    with contextlib.suppress(OSError):
        socket.create_connection((ready["host"], ready["port"])).close()
        return True
    return False


REQUEST = {"model": "run", "prompt": "a mat", "temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="module")
def expected(trained):
    """The text that answers the request."""
    run = trained.run
    continue_texts = make_continue(run.config.model, mesh_of(), run.tokenizer)
    options = {"max_new_tokens": 8, "temperature": 0.0}
    [text] = continue_texts(run.params, ["a mat"], **options)
    return text.removeprefix("a mat")


def test_serves_until_it_is_terminated(trained, expected):
    with serving(f"--workdir={trained.workdir}") as process:
        ready = json.loads(process.stdout.readline())
        assert ready["host"] == "127.0.0.1" and ready["model"] == "run"
        answer = post(ready, **REQUEST)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=600)
    assert (process.returncode, out) == (0, ""), err
    assert answer["choices"][0]["text"] == expected


def test_serves_chats_by_the_template_of_the_run(tmp_path, trained):
    shutil.copytree(trained.workdir, tmp_path / "run")
    file = tmp_path / "run" / "tokenizer" / "chat_template.jinja"
    file.write_text("{{ messages[0].content }}:")
    messages = [{"role": "user", "content": "a mat"}]
    options = {"temperature": 0, "max_tokens": 8}
    with serving(f"--workdir={tmp_path}/run") as process:
        ready = json.loads(process.stdout.readline())
        answer = post(ready, "/v1/chat/completions", messages=messages, **options)
    run = trained.run
    generator = Generator(run.config.model, mesh_of(), run.tokenizer.vocab_size)
    model = (generator, run.tokenizer, run.params)
    options = {"max_new_tokens": 8, "temperature": 0.0, "before": []}
    [expected] = continue_ids(*model, [list(b"a mat:")], **options)
    assert answer["choices"][0]["message"]["content"] == expected


def test_serves_drafted_text_until_ctrl_c(tool, trained, expected):
    ready, answers = {"host": "127.0.0.1", "port": free_port()}, []
    ended = threading.Event()

    def ask():
        try:
            while not (is_open(ready) or ended.wait(0.05)):
                pass
            answers.append(post(ready, **REQUEST))
        finally:
            if not ended.is_set():
                os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        flags = (f"--workdir={trained.workdir}", f"--port={ready['port']}")
        result = tool(TOOL, *flags, "--draft_steps=1", "--num_slots=2")
    finally:
        ended.set()
        thread.join()
    assert (result.returncode, json.loads(result.stdout)) == (
        0,
        ready | {"model": "run"},
    )
    [answer] = answers
    assert answer["choices"][0]["text"] == expected


@pytest.mark.parametrize("in_environment", [False, True])
def test_a_key(trained, monkeypatch, in_environment):
    if in_environment:
        monkeypatch.setenv("DIFFEQ_FORMER_API_KEY", "secret")
    flags = () if in_environment else ("--api_key=secret",)
    flags += ("--cors_origin=https://a.org", "--cors_origin=https://b.org")
    with serving(f"--workdir={trained.workdir}", *flags) as process:
        ready = json.loads(process.stdout.readline())
        url = f"http://{ready['host']}:{ready['port']}/v1/models"
        with pytest.raises(urllib.error.HTTPError, match="401") as raised:
            urllib.request.urlopen(url, timeout=600)
        raised.value.close()
        headers = {"Authorization": "Bearer secret", "Origin": "https://b.org"}
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=600) as response:
            allowed = response.headers["Access-Control-Allow-Origin"]
    assert (response.status, allowed) == (200, "https://b.org")


def test_a_port_that_is_taken(refused, trained):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        line = refused(TOOL, f"--workdir={trained.workdir}", f"--port={port}")
    assert line == (
        f"--host=127.0.0.1 --port={port}: Address already in use; use another, or"
        " --port=0 for any that is free"
    )


def test_a_host_that_is_unknown(refused, trained):
    flags = (f"--workdir={trained.workdir}", "--host=no.such.host.invalid")
    line = refused(TOOL, *flags)  # the reason is in the words of the resolver
    assert line.startswith("--host=no.such.host.invalid --port=8000: ")
    assert line.endswith("; use another, or --port=0 for any that is free")


def test_a_checkpoint_that_is_not_there(refused, trained):
    line = refused(TOOL, f"--workdir={trained.workdir}", "--port=0", "--step=2")
    assert line == f"{trained.workdir}/checkpoints has no step 2, but steps 3"


def test_without_the_extra(refused, trained, monkeypatch):
    monkeypatch.delitem(sys.modules, "diffeq_former.inference.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    line = refused(TOOL, f"--workdir={trained.workdir}")
    advice = "pip install -c constraints.txt -e '.[serve]'"
    assert line == f"the package uvicorn is missing: {advice}"


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        (
            "--port=70000",
            "flag --port=70000: 70000 is not an integer in the range [0, 65535]",
        ),
        ("--workdir=/no/such/run", "/no/such/run is not a run: it has no config.json"),
        (
            "--num_slots=0",
            "flag --num_slots=0: 0 is not a positive integer",
        ),
        (
            "--draft_steps=3",
            "draft_steps: expected 1 to 2, the model's own number of steps, got 3",
        ),
    ],
)
def test_wrong_input(refused, trained, flag, message):
    assert refused(TOOL, f"--workdir={trained.workdir}", flag) == message
