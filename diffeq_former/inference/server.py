"""The HTTP server: routing, request bodies and streaming; one thread per connection."""

import contextlib
import itertools
import json
import socket
import sys
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from diffeq_former.inference import protocol
from diffeq_former.inference.engine import Engine, Job, Piece
from diffeq_former.inference.protocol import Completion, RequestError

LONGEST_BODY = 4 * 2**20  # bytes
_DISCARDED = 8 * LONGEST_BODY  # bytes of a rejected body that are read and discarded
_PATIENCE = 30.0  # timeout in seconds for clients that neither send nor read


class Server(ThreadingHTTPServer):
    """HTTP server for one model.

    Args:
      host: The address to listen on.
      port: The port to listen on; 0: any free port.
      model: The name of the model in requests and responses.
      engine: The engine that runs the requests.
      tokenizer: The model's tokenizer.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, model: str, engine: Engine, tokenizer):
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)
        self.model, self.engine, self.tokenizer = model, engine, tokenizer
        self._answering, self._changed = 0, threading.Condition()

    def close(self) -> None:
        """Close the server after the responses in progress; call after `shutdown`."""
        self.server_close()
        self.engine.close()
        with self._changed:
            self._changed.wait_for(lambda: not self._answering, _PATIENCE)

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Mark a response as in progress, so that `close` waits for it."""
        with self._changed:
            self._answering += 1
        try:
            yield
        finally:
            with self._changed:
                self._answering -= 1
                self._changed.notify()

    def handle_error(self, request, client_address) -> None:
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            message = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"a connection failed: {message}", file=sys.stderr, flush=True)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = _PATIENCE
    server_version = "diffeq_former"
    default_request_version = "HTTP/1.1"  # so that malformed requests get a status line

    def _dispatch(self) -> None:
        methods = _ROUTES.get(self.path.partition("?")[0])
        try:
            if methods and self.command in methods:
                return methods[self.command](self)
            self._discard_body()
            if methods is None:
                raise RequestError(f"there is no {self.path}", None, 404)
            allowed = ", ".join(methods)
            failure = RequestError(f"expected the method {allowed}", None, 405)
            self._send(405, protocol.error(failure), {"Allow": allowed})
        except RequestError as failure:
            self._send(failure.status, protocol.error(failure))

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = _dispatch

    def _health(self) -> None:
        self._send(200, {"status": "ok"})

    def _models(self) -> None:
        self._send(200, protocol.models(self.server.model))

    def _completions(self) -> None:
        server = self.server
        completion = protocol.parse(self._body(), server.model, server.tokenizer)
        with server.answering(), server.engine.submit(completion) as job:
            if completion.stream:
                self._stream(completion, job)
            else:
                self._send(200, self._whole(completion, job))

    def _whole(self, completion: Completion, job: Job) -> dict:
        """Wait for all pieces and return the response."""
        texts, last = [""] * len(job.rows), [None] * len(job.rows)
        for piece in job.pieces():
            texts[piece.index] += piece.text
            last[piece.index] = piece
        return protocol.answer(self.server.model) | {
            "choices": [
                protocol.choice(i, text, piece.finish_reason)
                for i, (text, piece) in enumerate(zip(texts, last, strict=True))
            ],
            "usage": protocol.usage(completion, sum(p.num_tokens for p in last)),
        }

    def _stream(self, completion: Completion, job: Job) -> None:
        """Send the pieces as server-sent events."""
        pieces = job.pieces()
        first = next(pieces)  # an earlier failure can still set the status code
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-cache")
        self.end_headers()
        try:
            for event in self._events(completion, itertools.chain([first], pieces)):
                self._event(json.dumps(event))
            self._event("[DONE]")
        except RequestError as failure:
            self._event(json.dumps(protocol.error(failure)))

    def _events(self, completion: Completion, pieces: Iterator[Piece]):
        answer, num_new = protocol.answer(self.server.model), 0
        for piece in pieces:
            num_new += piece.num_tokens if piece.finish_reason else 0
            yield answer | {"choices": [protocol.choice(*piece[:3])]}
        if completion.include_usage:
            yield answer | {
                "choices": [],
                "usage": protocol.usage(completion, num_new),
            }

    def _event(self, data: str) -> None:
        self.wfile.write(f"data: {data}\n\n".encode())

    def _length(self) -> int:
        """Return the Content-Length of the request."""
        length = self.headers.get("Content-Length", "0")
        if not (length.isascii() and length.isdigit()):
            raise RequestError("Content-Length: expected a number of bytes")
        return int(length[:20])

    def _body(self) -> bytes:
        if "Content-Length" not in self.headers:
            raise RequestError("the request needs a Content-Length", None, 411)
        if self._length() > LONGEST_BODY:
            self._discard_body()
            raise RequestError(
                f"the body has more than {LONGEST_BODY} bytes", None, 413
            )
        return self.rfile.read(self._length())

    def _discard_body(self) -> None:
        """Read and drop the body; a client that still sends would miss the response."""
        remaining = min(self._length(), _DISCARDED)
        while remaining and (chunk := self.rfile.read(min(remaining, 2**16))):
            remaining -= len(chunk)

    def _send(self, status: int, content: dict, headers: dict | None = None) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code, message=None, explain=None) -> None:
        """Send errors of the base class, such as malformed HTTP, in OpenAI's format."""
        message = message or HTTPStatus(code).phrase
        self._send(code, protocol.error(RequestError(message, None, code)))

    def log_message(self, format, *args) -> None:
        """Do not log requests."""


_ROUTES = {
    "/health": {"GET": _Handler._health},
    "/v1/models": {"GET": _Handler._models},
    "/v1/completions": {"POST": _Handler._completions},
}
