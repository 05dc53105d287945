"""Serves a run's latest checkpoint over HTTP, with OpenAI's completions protocol.

tools/serve.py --workdir=runs/tiny --port=8000
curl localhost:8000/v1/completions -H 'Content-Type: application/json' \
    -d '{"prompt": "The list", "max_tokens": 20, "stream": true}'

When the server is ready, it prints one JSON object on stdout: host, port, and model
(the name of the run's folder). It accepts connections only from this machine, unless
--host is another address; there is no authentication. Ctrl-C and SIGTERM stop the
server after the requests in progress. See docs/serving.md.

The mesh is that of the run; if it does not fit the devices, choose another one as in
training: --config.mesh.data=1 --config.mesh.fsdp=-1.
"""

import json
import signal
import threading
from pathlib import Path

from absl import flags

from diffeq_former import cli
from diffeq_former.cli import mesh_flags

_WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder.", required=True)
_HOST = flags.DEFINE_string("host", "127.0.0.1", "The address to listen on.")
_PORT = flags.DEFINE_integer(
    "port",
    8000,
    "The port to listen on; 0: any free port.",
    lower_bound=0,
    upper_bound=65535,
)
_DRAFT_STEPS = flags.DEFINE_integer(
    "draft_steps", 0, "Solver steps of the draft model; 0: no speculative decoding."
)
_DRAFT_TOKENS = flags.DEFINE_integer(
    "draft_tokens", 4, "Number of tokens to draft before the full model verifies them."
)
flags.adopt_module_key_flags(mesh_flags)


def main() -> None:
    from diffeq_former import compilation_cache
    from diffeq_former.inference.engine import Engine
    from diffeq_former.inference.generate import Generator
    from diffeq_former.inference.speculative import Draft
    from diffeq_former.training import run_directory

    compilation_cache.enable()
    workdir = Path(_WORKDIR.value).absolute()
    config = run_directory.read_config(workdir)
    mesh = mesh_flags.make_mesh(config)
    steps = _DRAFT_STEPS.value
    draft = Draft(steps, _DRAFT_TOKENS.value) if steps else None
    if draft:
        draft.config(config.model)  # check the settings before loading the checkpoint
    run = run_directory.load(workdir, mesh)
    generator = Generator(run.config.model, mesh, run.tokenizer.vocab_size, draft)
    engine = Engine(generator, run.params, run.tokenizer)
    _serve(workdir.name, engine, run.tokenizer)


def _serve(model: str, engine, tokenizer) -> None:
    """Serve requests until SIGINT or SIGTERM."""
    from diffeq_former.errors import UserError
    from diffeq_former.inference.server import Server

    try:
        server = Server(_HOST.value, _PORT.value, model, engine, tokenizer)
    except OSError as error:
        raise UserError(
            f"--host={_HOST.value} --port={_PORT.value}: {error.strerror or error}; use"
            " another, or --port=0 for any that is free"
        ) from error
    stop_requested = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop_requested.set())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    host, port = server.server_address[:2]
    print(json.dumps({"host": host, "port": port, "model": model}), flush=True)
    stop_requested.wait()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # a second signal kills the process
    server.shutdown()
    server.close()


if __name__ == "__main__":
    cli.run(main)
