"""The server: an ASGI application for OpenAI's completions protocol, and uvicorn."""

import asyncio
import functools
import gc
import json
import signal
from collections.abc import AsyncIterator, Awaitable

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from diffeq_former.inference import protocol
from diffeq_former.inference.bounds import Bodies, BoundedProtocol
from diffeq_former.inference.engine import Engine, Job, Piece
from diffeq_former.inference.protocol import Completion, RequestError

# Requests parsed at a time: a body of many small lists takes 30 times its bytes.
_PARSERS = 1


class Server(uvicorn.Server):
    """HTTP server for one model; `run` serves until SIGINT or SIGTERM.

    Args:
      model: The name of the model in requests and responses.
      engine: The engine that runs the requests; it is closed at the end.
      tokenizer: The model's tokenizer.
    """

    def __init__(self, model: str, engine: Engine, tokenizer):
        app = make_app(model, engine, tokenizer)
        super().__init__(
            # Its logging configuration would close the handlers of the whole process.
            uvicorn.Config(
                app,
                http=BoundedProtocol,
                lifespan="off",
                log_config=None,
                log_level="error",
                access_log=False,
            )
        )
        self._engine = engine

    def run(self, sockets=None) -> None:
        gc.freeze()  # or the garbage of each large body has all modules searched
        super().run(sockets)

    def handle_exit(self, sig, frame) -> None:
        """End after the responses in progress; a second signal kills the process."""
        self.should_exit = True
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)

    async def shutdown(self, sockets=None) -> None:
        await run_in_threadpool(self._engine.close)
        await super().shutdown(sockets)


def make_app(model: str, engine: Engine, tokenizer) -> Starlette:
    """Return the ASGI application; for the arguments see `Server`."""

    async def health(_) -> Response:
        return JSONResponse({"status": "ok"})

    async def models(_) -> Response:
        return JSONResponse(protocol.models(model))

    async def completions(request: Request) -> Response:
        async with bodies.read(request) as body:
            completion = await anyio.to_thread.run_sync(parse, body, limiter=parsers)
        results, loop = asyncio.Queue(), asyncio.get_running_loop()
        send = functools.partial(loop.call_soon_threadsafe, results.put_nowait)
        pieces = _pieces(engine.submit(completion, send), results)
        if not completion.stream:
            whole = _whole(completion, pieces)
            return JSONResponse(answer() | await _unless_left(request, whole))
        first = await _unless_left(request, anext(pieces))  # may set the status code
        return StreamingResponse(
            _events(completion, answer(), first, pieces),
            headers={"Cache-Control": "no-cache"},
            media_type="text/event-stream",
        )

    bodies, parsers = Bodies(), anyio.CapacityLimiter(_PARSERS)
    parse = functools.partial(
        protocol.parse, model=model, tokenizer=tokenizer, max_len=engine.max_len
    )
    answer = functools.partial(protocol.answer, model)
    return Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/models", models),
            Route("/v1/completions", completions, methods=["POST"]),
        ],
        exception_handlers={
            RequestError: _send_error,
            HTTPException: _send_http_error,
            ClientDisconnect: lambda *_: Response(),  # which nobody receives
        },
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


async def _pieces(job: Job, results: asyncio.Queue) -> AsyncIterator[Piece]:
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
            yield result


async def _whole(completion: Completion, pieces: AsyncIterator[Piece]) -> dict:
    """Wait for all pieces and return the choices and token counts."""
    texts, last = {}, {}
    async for piece in pieces:
        texts[piece.index] = texts.get(piece.index, "") + piece.text
        last[piece.index] = piece
    choices = [
        protocol.choice(i, texts[i], last[i].finish_reason) for i in sorted(last)
    ]
    num_new = sum(piece.num_tokens for piece in last.values())
    return {"choices": choices, "usage": protocol.usage(completion, num_new)}


async def _events(
    completion: Completion, answer: dict, piece: Piece, pieces: AsyncIterator[Piece]
) -> AsyncIterator[str]:
    """Yield server-sent events: the pieces, of which `piece` is the first."""
    num_new = 0
    try:
        while piece is not None:
            num_new += piece.num_tokens if piece.finish_reason else 0
            yield _event(answer | {"choices": [protocol.choice(*piece[:3])]})
            piece = await anext(pieces, None)
    except RequestError as error:
        yield _event(protocol.error(error))
        return
    if completion.stream_options.include_usage:
        usage = protocol.usage(completion, num_new)
        yield _event(answer | {"choices": [], "usage": usage})
    yield "data: [DONE]\n\n"


def _event(content: dict) -> str:
    return f"data: {json.dumps(content)}\n\n"


async def _send_error(_, error: RequestError) -> Response:
    return JSONResponse(protocol.error(error), error.status)


async def _send_http_error(request: Request, error: HTTPException) -> Response:
    message = f"{request.method} {request.url.path}: {error.detail}"
    content = protocol.error(RequestError(message, None, error.status_code))
    return JSONResponse(content, error.status_code, error.headers)
