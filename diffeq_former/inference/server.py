"""The server: uvicorn with the application of one model."""

import gc
import signal

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool

from diffeq_former.inference.bounds import BoundedProtocol
from diffeq_former.inference.engine import Engine


class Server(uvicorn.Server):
    """HTTP server for one model; `run` serves until SIGINT or SIGTERM.

    Args:
      app: The application, see `app.make_app`.
      engine: The engine of the application; it is closed at the end.
    """

    def __init__(self, app: Starlette, engine: Engine):
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
