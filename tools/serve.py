r"""Serves a trained model over HTTP, with OpenAI's protocol.

tools/serve.py --workdir=runs/tiny --port=8000
curl localhost:8000/v1/completions -H 'Content-Type: application/json' \
    -d '{"prompt": "The list", "max_tokens": 20, "stream": true}'

The checkpoint is the run's latest, or that of --step. When all programs are compiled
and the server is ready, it prints one JSON object on stdout: host, port, and model (the
name of the run's folder). It accepts connections only from this machine, unless --host
is another address. With --api_key, or the environment variable DIFFEQ_FORMER_API_KEY,
which other users of the machine cannot see, clients need that key. With
--cors_origin=https://example.org, web pages of that origin may use the server. Ctrl-C
and SIGTERM stop the server after the requests in progress. See docs/serving.md.
Requires the extra serve.

With --num_steps and --solver, other solver steps than in training are taken. The mesh
is that of the run; if it does not fit the devices, choose another one as in
training: --config.mesh.data=1 --config.mesh.fsdp=-1.
"""

import os
import socket
from pathlib import Path

from absl import flags

from diffeq_former import cli
from diffeq_former.cli import mesh_flags, solver_flags
from diffeq_former.json_io import print_line

_KEY_VARIABLE = "DIFFEQ_FORMER_API_KEY"
_WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder.", required=True)
_STEP = flags.DEFINE_integer(
    "step", None, "The step of the checkpoint; default: the latest."
)
_HOST = flags.DEFINE_string("host", "127.0.0.1", "The address to listen on.")
_PORT = flags.DEFINE_integer(
    "port",
    8000,
    "The port to listen on; 0: any free port.",
    lower_bound=0,
    upper_bound=65535,
)
_API_KEY = flags.DEFINE_string(
    "api_key",
    None,
    f"The key that clients need; default: that in {_KEY_VARIABLE}, or none.",
)
_CORS_ORIGINS = flags.DEFINE_multi_string(
    "cors_origin", [], "An origin whose web pages may use the server; can be repeated."
)
_DRAFT_STEPS = flags.DEFINE_integer(
    "draft_steps", 0, "Solver steps of the draft model; 0: no speculative decoding."
)
_DRAFT_TOKENS = flags.DEFINE_integer(
    "draft_tokens", 4, "Number of tokens to draft before the full model verifies them."
)
_NUM_SLOTS = flags.DEFINE_integer(
    "num_slots",
    32,
    "Texts generated at a time; the cache has room for max_len tokens of each.",
    lower_bound=1,
)
_SOLVER_FLAGS = solver_flags.define()
flags.adopt_module_key_flags(mesh_flags)


def main() -> None:
    from diffeq_former import compilation_cache
    from diffeq_former.errors import require_extra
    from diffeq_former.inference.generate import Generator
    from diffeq_former.inference.speculative import Draft
    from diffeq_former.training import run_directory

    require_extra("serve", "jinja2", "pydantic", "starlette", "uvicorn")
    from diffeq_former.inference.app import make_app
    from diffeq_former.inference.chat_template import ChatTemplate
    from diffeq_former.inference.engine import Engine
    from diffeq_former.inference.server import Server

    compilation_cache.enable()
    workdir = Path(_WORKDIR.value).absolute()
    steps = _DRAFT_STEPS.value
    draft = Draft(steps, _DRAFT_TOKENS.value) if steps else None
    if draft:  # check the settings before loading the checkpoint
        draft.config(_SOLVER_FLAGS.read_model(workdir))
    with _bind() as listener:
        run = _SOLVER_FLAGS.load_run(workdir, _STEP.value)
        generator = Generator(
            run.config.model, run.mesh, run.tokenizer.vocab_size, draft
        )
        engine = Engine(generator, run.params, run.tokenizer, _NUM_SLOTS.value)
        engine.warm_up()
        engine.start()
        folder = workdir / run_directory.TOKENIZER
        template = ChatTemplate.read(folder, run.tokenizer)
        app = make_app(
            workdir.name,
            engine,
            run.tokenizer,
            template,
            api_key=_API_KEY.value or os.environ.get(_KEY_VARIABLE),
            cors_origins=_CORS_ORIGINS.value,
        )
        server = Server(app, engine)
        listener.listen()
        host, port = listener.getsockname()[:2]
        ready = {"host": host, "port": port, "model": workdir.name}
        print_line(ready)
        server.run(sockets=[listener])


def _bind() -> socket.socket:
    """Return a socket that is bound to the given address."""
    from diffeq_former.errors import UserError

    host, port = _HOST.value, _PORT.value
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise UserError(
            f"--host={host} --port={port}: {error.strerror or error}; use another, or"
            " --port=0 for any that is free"
        ) from error
    return listener


if __name__ == "__main__":
    cli.run(main)
