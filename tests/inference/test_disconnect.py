"""Clients that close their connection: what the engine still computes for them."""

import json
import threading
import time

import pytest


class Programs:
    """Records the calls of a batch's programs and pauses one of them."""

    def __init__(self, batch, monkeypatch):
        self.calls = []
        self._paused_call = None
        self._paused, self._proceed = threading.Event(), threading.Event()
        names = ("read", "decode")
        programs = batch._programs
        recorded = {n: self._recorded(n, getattr(programs, n)) for n in names}
        monkeypatch.setattr(batch, "_programs", programs._replace(**recorded))

    def pause_before(self, *calls):
        """Pause before the last of these calls, when they are the ones so far."""
        self._paused_call = list(calls)

    def wait_until_paused(self):
        assert self._paused.wait(timeout=60)

    def proceed(self):
        self._proceed.set()

    def _recorded(self, name, program):
        def call(*arguments):
            self.calls.append(name)
            if self.calls == self._paused_call:
                self._paused.set()
                assert self._proceed.wait(timeout=60)
            return program(*arguments)

        return call


@pytest.fixture
def programs(served, complete, monkeypatch):
    assert complete(prompt="a", max_tokens=1)[0] == 200  # nothing else is running
    programs = Programs(served.engine._batch, monkeypatch)
    yield programs
    programs.proceed()


@pytest.fixture
def jobs(served, monkeypatch):
    """The jobs that were submitted."""
    jobs, submit = [], served.engine.submit

    def record(*arguments):
        jobs.append(submit(*arguments))
        return jobs[-1]

    monkeypatch.setattr(served.engine, "submit", record)
    return jobs


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def post(served, request):
    """Send a request; returns the connection, on which the response follows."""

    def send(**fields):
        body = json.dumps(fields | {"temperature": 0, "stream": request.param})
        connection = served.connect()
        connection.sendall(
            f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        return connection

    return send


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


FOLLOWER = {"prompt": "a", "max_tokens": 1}
ITS_CALLS = ["read", "decode"]


def test_a_running_request_ends_at_the_next_look(programs, jobs, post, complete):
    programs.pause_before("read", "decode", "decode")
    with post(prompt="a", max_tokens=240, n=3):
        programs.wait_until_paused()
    wait_for(lambda: jobs[0].cancelled)
    programs.proceed()
    assert complete(**FOLLOWER)[0] == 200
    assert programs.calls == ["read", "decode", "decode", *ITS_CALLS]
    assert [len(x.new) for x in jobs[0].sequences] == [16, 16, 16]


def test_a_prompt_is_not_read_to_its_end(programs, jobs, post, complete):
    programs.pause_before("read", "read")
    with post(prompt=["a" * 1500, "a"], max_tokens=240):
        programs.wait_until_paused()
    wait_for(lambda: jobs[0].cancelled)
    programs.proceed()
    assert complete(**FOLLOWER)[0] == 200
    assert programs.calls == ["read", "read", *ITS_CALLS]


def num_left(ask):
    """The number of requests whose clients left before the response began."""
    *_, text = ask("/metrics")
    _, _, count = text.partition('path="/v1/completions",status="499"} ')
    return int(count.partition("\n")[0] or 0)


def test_a_waiting_request_is_not_run(programs, jobs, post, complete, ask):
    before = num_left(ask)
    programs.pause_before("read")
    with post(prompt="a", max_tokens=8) as running:
        programs.wait_until_paused()
        with post(prompt="a" * 1500, max_tokens=8):
            wait_for(lambda: len(jobs) == 2)
        wait_for(lambda: jobs[1].cancelled and num_left(ask) == before + 1)
        programs.proceed()
        assert running.makefile("rb").read().startswith(b"HTTP/1.1 200 ")
    assert complete(**FOLLOWER)[0] == 200
    assert programs.calls == ["read", "decode", *ITS_CALLS]
    assert jobs[1].sequences[0].new == []


def test_a_client_that_has_sent_another_request(served, programs, jobs, complete):
    programs.pause_before("read", "decode", "decode")
    body = json.dumps({"prompt": "a", "max_tokens": 240, "temperature": 0})
    with served.connect() as connection:
        connection.sendall(
            f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}"
            f"\r\n\r\n{body}".encode()
        )
        programs.wait_until_paused()  # the server waits for the end of the connection
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
    wait_for(lambda: jobs[0].cancelled)
    programs.proceed()
    assert complete(**FOLLOWER)[0] == 200
    assert programs.calls == ["read", "decode", "decode", *ITS_CALLS]
