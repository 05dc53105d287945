"""Access control: an API key for clients, and origins for web pages."""

import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from diffeq_former.inference.protocol import RequestError


class KeyCheck:
    """Middleware that rejects requests without `Authorization: Bearer KEY`.

    Args:
      app: The application that it protects.
      key: The key.
    """

    def __init__(self, app, key: str):
        self._app, self._key = app, key

    async def __call__(self, scope, receive, send) -> None:
        given = Headers(scope=scope).get("authorization", "")
        scheme, _, key = given.partition(" ")
        sent = key.strip().encode("latin-1")  # the bytes of the header
        is_right = hmac.compare_digest(sent, self._key.encode())
        if scheme.lower() != "bearer" or not is_right:
            raise RequestError(
                "this server needs its API key: send the header Authorization: Bearer"
                " KEY",
                None,
                401,
                "invalid_api_key",
            )
        await self._app(scope, receive, send)


def cors(origins: Sequence[str]) -> list[Middleware]:
    """Return the middleware that lets web pages of these origins use the server."""
    if not origins:
        return []
    options = {"allow_methods": ["GET", "POST"], "allow_headers": ["*"]}
    return [Middleware(CORSMiddleware, allow_origins=origins, **options)]
