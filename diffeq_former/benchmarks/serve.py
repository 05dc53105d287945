"""Throughput and latency of the server by number of clients."""

import concurrent.futures
import contextlib
import http.client
import json
import subprocess
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from diffeq_former.errors import UserError


class _Answer(NamedTuple):
    num_tokens: int
    seconds_to_first_text: float


def benchmark(
    command: list[str],
    prompts: list[str],
    clients: list[int],
    rounds: int,
    max_new_tokens: int,
) -> Iterator[dict]:
    """Yield one record for each number of clients.

    Each client streams one completion after the other, as many as there are rounds. The
    clients are threads of this process; the server is another one, on this machine.

    Args:
      command: The command that starts the server; it is terminated at the end.
      prompts: The prompts, which the requests take in turn.
      clients: Numbers of clients.
      rounds: Requests of each client.
      max_new_tokens: Maximum number of tokens that follow a prompt.

    Raises:
      UserError: If the server does not start, or rejects a request.
    """
    with _server(command) as ready:
        first_rate = None
        for count in clients:
            start = time.perf_counter()
            with concurrent.futures.ThreadPoolExecutor(count) as pool:
                asked = range(count * rounds)
                bodies = [
                    _body(prompts[i % len(prompts)], max_new_tokens, i) for i in asked
                ]
                answers = list(pool.map(lambda body: _ask(ready, body), bodies))
            rate = sum(x.num_tokens for x in answers) / (time.perf_counter() - start)
            first_rate = first_rate or rate
            waits = [x.seconds_to_first_text for x in answers]
            median, p95 = np.percentile(waits, [50, 95]).tolist()
            yield {
                "clients": count,
                "requests": len(answers),
                "tokens_per_second": rate,
                "speed_up": rate / first_rate,
                "seconds_to_first_text": {"median": median, "p95": p95},
            }


@contextlib.contextmanager
def _server(command: list[str]) -> Iterator[dict]:
    """Run the server; the context's value is what it prints when it is ready."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            if not line:
                raise UserError(
                    "the server did not start; its own message on stderr says why"
                )
            yield json.loads(line)
        finally:
            process.terminate()


def _body(prompt: str, max_new_tokens: int, seed: int) -> bytes:
    fields = {"prompt": prompt, "max_tokens": max_new_tokens, "seed": seed}
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(fields | stream).encode()


def _ask(ready: dict, body: bytes) -> _Answer:
    connection = http.client.HTTPConnection(ready["host"], ready["port"])
    start, first, num_tokens = time.perf_counter(), None, 0
    with contextlib.closing(connection):
        connection.request("POST", "/v1/completions", body)
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise UserError(json.load(response)["error"]["message"])
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line.removeprefix(b"data: "))
            if first is None and event.get("choices"):
                first = time.perf_counter() - start
            num_tokens = event.get("usage", {}).get("completion_tokens", num_tokens)
    return _Answer(num_tokens, first)
