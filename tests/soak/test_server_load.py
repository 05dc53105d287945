"""Slow clients and large bodies: the server stays small, and answers others."""

import contextlib
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

import psutil
import pytest
from runs import ROOT

SLOW_CLIENTS, BODIES = 200, 30
MOST_BYTES = 300e6
# Bodies that are costly to parse.
KINDS = {
    "a text": lambda size: {"prompt": "the " * (size // 4)},
    "ids": lambda size: {"prompt": [97] * (size // 4)},
    "lists": lambda size: {"prompt": [[97]] * (size // 6)},
    "texts": lambda size: {"prompt": ["a"] * (size // 5)},
}


@pytest.fixture(scope="module")
def server(tiny_run, tmp_path_factory):
    workdir, folder = tiny_run.folder / "run", tmp_path_factory.mktemp("served")
    command = [sys.executable, ROOT / "tools/serve.py", f"--workdir={workdir}"]
    with subprocess.Popen([*command, "--port=0"], stdout=subprocess.PIPE) as process:
        ready = json.loads(process.stdout.readline())
        address = ready["host"], ready["port"]
        ask(1, address, folder / "body.json", {"prompt": "the", "max_tokens": 2})
        yield psutil.Process(process.pid), address
        process.terminate()


# Clients in a process of their own: number, host, port, file of the body.
CLIENTS = """
import contextlib, sys, threading, urllib.request
number, host, port, path = sys.argv[1:]
body = open(path, "rb").read()

def ask():
    for _ in range(3):
        with contextlib.suppress(OSError):
            url = f"http://{host}:{port}/v1/completions"
            with urllib.request.urlopen(url, body, timeout=60) as response:
                response.read()

threads = [threading.Thread(target=ask) for _ in range(int(number))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def ask(number: int, address, path, content: dict) -> None:
    path.write_text(json.dumps(content))
    arguments = [str(x) for x in (number, *address, path)]
    subprocess.run([sys.executable, "-c", CLIENTS, *arguments], check=True)


@pytest.mark.parametrize("size", [1_000_000, 4_000_000])
@pytest.mark.parametrize("kind", KINDS)
def test_slow_clients_and_large_bodies(server, tmp_path, kind, size):
    process, address = server
    idle, ended = process.memory_info().rss, threading.Event()
    most, seconds = [idle], []

    def watch():
        while not ended.wait(0.02):
            most.append(process.memory_info().rss)

    def ask_for_health():
        url = "http://{}:{}/health".format(*address)
        while not ended.wait(0.05):
            start = time.monotonic()
            with urllib.request.urlopen(url, timeout=60) as response:
                response.read()
            seconds.append(time.monotonic() - start)

    with contextlib.ExitStack() as stack:
        for _ in range(SLOW_CLIENTS):
            slow = stack.enter_context(socket.create_connection(address))
            slow.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 4000\r\n")
        watchers = [threading.Thread(target=x) for x in (watch, ask_for_health)]
        for thread in watchers:
            thread.start()
        ask(BODIES, address, tmp_path / "body.json", KINDS[kind](size))
        ended.set()
        for thread in watchers:
            thread.join()
    added = max(most) - idle
    median = statistics.median(seconds)
    print(
        f"{size} bytes, {kind}: {added / 1e6:.0f} MB above idle; /health"
        f" {len(seconds)} times, median {median:.3f} s, at most {max(seconds):.3f} s"
    )
    assert added < MOST_BYTES
