"""The server's ASGI application: OpenAI's completions and chat protocols."""

import asyncio
import collections
import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from diffeq_former.data.tokenizers import Tokenizer
from diffeq_former.inference import responses
from diffeq_former.inference.access import KeyCheck, cors
from diffeq_former.inference.bounds import Bodies
from diffeq_former.inference.chat_template import ChatTemplate
from diffeq_former.inference.engine import Engine, Job, Piece
from diffeq_former.inference.metrics import (
    CLIENT_LEFT,
    MEDIA_TYPE,
    Metrics,
    RequestCount,
    WatchedRequest,
)
from diffeq_former.inference.protocol import (
    Completion,
    Parser,
    RequestError,
    unknown_model,
)
from diffeq_former.inference.responses import Format

# Requests parsed at a time: a body of many small lists takes 30 times its bytes.
_PARSERS = 1

Parse = Callable[[bytearray], Completion]


def make_app(
    model: str,
    engine: Engine,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    *,
    api_key: str | None = None,
    cors_origins: Sequence[str] = (),
) -> Starlette:
    """Return the ASGI application.

    Args:
      model: The name of the model in requests and responses.
      engine: The engine that runs the requests.
      tokenizer: The model's tokenizer.
      template: The tokenizer's chat template.
      api_key: The key that clients need for all paths but /health; None: none.
      cors_origins: The origins of web pages that may use the server, or "*" for all.
    """
    parser = Parser(model, tokenizer, template, engine.max_len)
    endpoints = _Endpoints(model, engine, parser)
    keyed = [Middleware(KeyCheck, api_key)] if api_key else []

    def route(path: str, endpoint: Callable, method: str = "GET") -> Route:
        return Route(path, endpoint, methods=[method], middleware=keyed)

    routes = [
        Route("/health", endpoints.health),
        route("/metrics", endpoints.read_metrics),
        route("/v1/models", endpoints.models),
        route("/v1/models/{name:path}", endpoints.one_model),
        route("/v1/completions", endpoints.completions, "POST"),
        route("/v1/chat/completions", endpoints.chat, "POST"),
    ]
    counting = Middleware(
        RequestCount, endpoints.metrics, [route.path for route in routes]
    )
    return Starlette(
        routes=routes,
        middleware=[counting, *cors(cors_origins)],
        exception_handlers={
            RequestError: _send_error,
            HTTPException: _send_http_error,
            # Nobody receives this response, but it is counted.
            ClientDisconnect: lambda *_: Response(status_code=CLIENT_LEFT),
        },
    )


class _Endpoints:
    """Endpoints of the application."""

    def __init__(self, model: str, engine: Engine, parser: Parser):
        self._model, self._engine, self._parser = model, engine, parser
        self._bodies, self._parsers = Bodies(), anyio.CapacityLimiter(_PARSERS)
        self.metrics = Metrics()

    async def health(self, _) -> Response:
        return JSONResponse({"status": "ok"})

    async def read_metrics(self, _) -> Response:
        text = self.metrics.text(self._engine.num_waiting)
        return Response(text, media_type=MEDIA_TYPE)

    async def models(self, _) -> Response:
        return JSONResponse(responses.models(self._model))

    async def one_model(self, request: Request) -> Response:
        if (name := request.path_params["name"]) != self._model:
            raise unknown_model(name, self._model)
        return JSONResponse(responses.model(self._model))

    async def completions(self, request: Request) -> Response:
        return await self._respond(
            request, self._parser.completion, responses.COMPLETION
        )

    async def chat(self, request: Request) -> Response:
        return await self._respond(request, self._parser.chat, responses.CHAT)

    async def _respond(self, request: Request, parse: Parse, form: Format) -> Response:
        watched = self.metrics.watch_request()
        async with self._bodies.read(request) as body:
            completion = await anyio.to_thread.run_sync(
                parse, body, limiter=self._parsers
            )
        results, loop = asyncio.Queue(), asyncio.get_running_loop()
        send = functools.partial(loop.call_soon_threadsafe, results.put_nowait)
        job = self._engine.submit(completion, send)
        watched.accepted(completion.num_prompt_tokens)
        pieces = _pieces(job, results, watched)
        shared = responses.answer(self._model, form, completion.stream)
        if not completion.stream:
            whole = _whole(completion, form, pieces)
            return JSONResponse(shared | await _unless_left(request, whole))
        first = await _unless_left(request, anext(pieces))  # may set the status code
        return StreamingResponse(
            _events(completion, form, shared, first, pieces),
            headers={"Cache-Control": "no-cache"},
            media_type="text/event-stream",
        )


async def _unless_left(request: Request, work: Awaitable):
    """Return the result of `work`; cancel it if the client closes the connection.

    Raises:
      ClientDisconnect: If the client has closed the connection.
    """
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(request.receive())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            return tasks[0].result()
        raise ClientDisconnect
    finally:
        for task in tasks:
            task.cancel()


async def _pieces(
    job: Job, results: asyncio.Queue, watched: WatchedRequest
) -> AsyncIterator[Piece]:
    """Yield pieces of text until all choices are complete; cancel the job at the end.

    Raises:
      RequestError: If the request fails.
    """
    with job:
        unfinished = len(job.sequences)
        while unfinished:
            result = await results.get()
            if isinstance(result, RequestError):
                raise result
            unfinished -= result.finish_reason is not None
            watched.generated(result.index, result.num_tokens)
            yield result


async def _whole(
    completion: Completion, form: Format, pieces: AsyncIterator[Piece]
) -> dict:
    """Wait for all pieces and return the choices and token counts."""
    texts, scored, last = (
        collections.defaultdict(str),
        collections.defaultdict(list),
        {},
    )
    async for piece in pieces:
        texts[piece.index] += piece.text
        scored[piece.index] += piece.scored
        last[piece.index] = piece
    choices = [
        responses.choice(
            i,
            form.text(texts[i]),
            last[i].finish_reason,
            _logprobs(completion, form, scored[i]),
        )
        for i in sorted(last)
    ]
    num_new = sum(piece.num_tokens for piece in last.values())
    return {"choices": choices, "usage": responses.usage(completion, num_new)}


async def _events(
    completion: Completion,
    form: Format,
    shared: dict,
    piece: Piece,
    pieces: AsyncIterator[Piece],
) -> AsyncIterator[str]:
    """Yield server-sent events: the pieces, of which `piece` is the first."""
    num_new, begun = 0, set()
    try:
        while piece is not None:
            num_new += piece.num_tokens if piece.finish_reason else 0
            text = form.new_text(piece.text, piece.index not in begun)
            begun.add(piece.index)
            logprobs = _logprobs(completion, form, piece.scored)
            choice = responses.choice(piece.index, text, piece.finish_reason, logprobs)
            yield _event(shared | {"choices": [choice]})
            piece = await anext(pieces, None)
    except RequestError as error:
        yield _event(responses.error(error))
        return
    if completion.stream_options.include_usage:
        usage = responses.usage(completion, num_new)
        yield _event(shared | {"choices": [], "usage": usage})
    yield "data: [DONE]\n\n"


def _logprobs(completion: Completion, form: Format, scored: list) -> dict | None:
    return None if completion.logprobs is None else form.logprobs(scored)


def _event(content: dict) -> str:
    return f"data: {json.dumps(content)}\n\n"


async def _send_error(_, error: RequestError) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
    return JSONResponse(responses.error(error), error.status, headers)


async def _send_http_error(request: Request, error: HTTPException) -> Response:
    message = f"{request.method} {request.url.path}: {error.detail}"
    content = responses.error(RequestError(message, None, error.status_code))
    return JSONResponse(content, error.status_code, error.headers)
