"""Bounds of what clients can make the server hold: connections, time and bytes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import h11
from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from diffeq_former.inference.protocol import RequestError

MOST_CONNECTIONS = 512  # more are closed at once
SECONDS_FOR_HEADERS = 20
SECONDS_FOR_BODY = 60
LONGEST_BODY = 2**20  # bytes; parsing one takes tens of milliseconds
MOST_BODY_BYTES = 32 * LONGEST_BODY  # of all requests that are being read or parsed
MOST_PIPELINED = 2**16  # bytes that a client sends before it has a response
_DISCARDED = 32 * LONGEST_BODY  # bytes of a rejected body that are read and discarded


class BoundedProtocol(H11Protocol):
    """Closes a connection if there are too many, or if headers take too long.

    A connection is also closed if its client sends too much before it has a response.
    """

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport) -> None:
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
        else:
            self._set_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._set_timer()

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.their_state is h11.DONE:
            # Read on after the request, or a client that leaves is not noticed.
            self.flow.resume_reading()
            if len(self.conn.trailing_data[0]) > MOST_PIPELINED:
                self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer:
            self._timer.cancel()

    def _set_timer(self) -> None:
        """Start the timer while headers are awaited, and cancel it when they are in."""
        if not self._awaits_headers():
            if self._timer:
                self._timer.cancel()
            self._timer = None
        elif self._timer is None:
            self._timer = self.loop.call_later(SECONDS_FOR_HEADERS, self._expire)

    def _expire(self) -> None:
        self._timer = None
        if self._awaits_headers():
            self.transport.close()

    def _awaits_headers(self) -> bool:
        return self.cycle is None or self.cycle.response_complete


class Bodies:
    """Reads the bodies of requests, which together have at most `MOST_BODY_BYTES`."""

    def __init__(self):
        self._num_bytes = 0

    @contextlib.asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytearray]:
        """Yield the body of a request; its bytes count until the context ends.

        One that is too long is discarded before the response, which clients would
        otherwise not read.

        Raises:
          RequestError: If the body is too long or takes too long, or other requests
            have too many bytes.
        """
        body, size = bytearray(), 0
        try:
            async with asyncio.timeout(SECONDS_FOR_BODY):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > _DISCARDED:
                        break
                    if size <= LONGEST_BODY:
                        self._take(len(chunk))
                        body += chunk
            if size > LONGEST_BODY:
                raise RequestError(
                    f"the body has more than {LONGEST_BODY} bytes", None, 413
                )
            yield body
        except TimeoutError as error:
            raise RequestError(
                f"the body did not arrive within {SECONDS_FOR_BODY} s", None, 408
            ) from error
        finally:
            self._num_bytes -= len(body)

    def _take(self, count: int) -> None:
        if self._num_bytes + count > MOST_BODY_BYTES:
            raise RequestError("too many requests; try again later", None, 429)
        self._num_bytes += count
