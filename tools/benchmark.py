r"""Benchmarks a config and variants of it, a run's decoding or serving, or PyTorch.

tools/benchmark.py MODE --config=configs/gpt_small.py [--config.SECTION.FIELD=VALUE ...]
  --variant="plain: model.weights=layer_table model.solver=lie_trotter"
tools/benchmark.py torch --config=configs/gpt_small.py --batch_sizes=8,16,32
tools/benchmark.py speculation --workdir=runs/any --prompt="It was" \
  --draft_steps=2,3,4 --draft_tokens=2,4
tools/benchmark.py serve --workdir=runs/any --prompt="It was" --clients=1,8,32

Modes of a config and its variants, which take turns in one process: train (steps on
random tokens), weights (generation, pullback and update of the banks, relative to the
device's memory bandwidth), depth (compile time and memory by number of layers), decode
(text generation by batch size), data (the pipeline alone), startup (from the start of
Python to the first step). With --recorded, a JSON file {VARIANT: ratio}, the exit code
is 1 if a variant has become more than a quarter faster relative to the config itself.
With --beside=torch, train also takes turns with the plain transformer in PyTorch, eager
and under torch.compile.

torch: training of the equivalent plain transformer in PyTorch: GPT-2 or Llama of
Hugging Face transformers with random parameters, under torch.compile, with PyTorch's
scaled_dot_product_attention and AdamW, on one device. An optimizer step uses
training.batch_size sequences, in micro-batches of the fastest size in --batch_sizes.
One line for the vocabulary as it is, and one for it padded to a multiple of 128.

speculation: self-speculative decoding with a run's latest checkpoint: draft_steps and
draft_tokens (0 for plain decoding, the first line), acceptance (accepted / drafted
tokens), tokens_per_second of all prompts together, and speed_up over plain decoding.
See docs/serving.md. The mesh is the run's own, or --config.mesh.data=1 and so on.

serve: tools/serve.py under load: for each number of --clients, each of which streams as
many completions as there are rounds, one after the other: tokens_per_second of all
together, speed_up over the first number of clients, and seconds_to_first_text (median
and 95th percentile over the requests). See docs/serving.md.

Each line on stdout is a JSON object. Except those of serve, seconds, rates and ratios
are medians over the rounds, with the lowest and the highest.
"""

import functools
import importlib
import itertools
import sys
from pathlib import Path

from absl import flags
from ml_collections import config_flags

from diffeq_former import cli, process_exit
from diffeq_former.errors import UserError, require_extra
from diffeq_former.json_io import print_line, read_object

config_flags.DEFINE_config_file("config", None, "A file in configs/.")
flags.DEFINE_multi_string(
    "variant", None, "NAME: SECTION.FIELD=VALUE ...; may be repeated."
)
flags.DEFINE_integer(
    "rounds", None, "Number of timed rounds; default: 5.", lower_bound=1
)
flags.DEFINE_integer("steps", None, "Steps per measurement; default: 3.", lower_bound=1)
flags.DEFINE_string("recorded", None, "JSON file of reference ratios (train).")
flags.DEFINE_enum("beside", None, ["torch"], "train: time PyTorch in turn as well.")
flags.DEFINE_list("batch_sizes", None, "torch: micro-batch sizes, such as 8,16,32.")
flags.DEFINE_bool("compile", None, "torch: use torch.compile; default: True.")
flags.DEFINE_string("workdir", None, "speculation, serve: the run's folder.")
flags.DEFINE_multi_string(
    "prompt", None, "speculation, serve: a text to continue; may be repeated."
)
flags.DEFINE_list("clients", None, "serve: numbers of clients; default: 1,8,32.")
flags.DEFINE_list("draft_steps", None, "speculation: solver steps of the drafts.")
flags.DEFINE_list(
    "draft_tokens", None, "speculation: numbers of tokens to draft; default: 4."
)
flags.DEFINE_integer(
    "max_new_tokens",
    None,
    "speculation, serve: new tokens per prompt; default: 100.",
)
flags.DEFINE_float(
    "temperature",
    None,
    "speculation: sampling temperature; 0: the most likely token; default: 1.",
)
flags.DEFINE_float(
    "top_p",
    None,
    "speculation: cumulative probability of nucleus sampling; default: 1.",
)
if sys.argv[1:2] == ["speculation"]:  # flags of the mesh that --config defines, too
    from diffeq_former.cli import mesh_flags

    flags.adopt_module_key_flags(mesh_flags)

_TOLERANCE = 1.25


def of_config(
    mode: str, config, variant=(), rounds: int = 5, steps: int = 3, recorded=None
) -> int:
    return _run(mode, config, variant, rounds, steps, recorded)


def train(
    config, variant=(), rounds: int = 5, steps: int = 3, recorded=None, beside=None
) -> int:
    if beside:
        require_extra("hf", "torch", "transformers")
    options = {"beside": beside} if beside else {}
    return _run("train", config, variant, rounds, steps, recorded, **options)


def _run(mode: str, config, variant, rounds, steps, recorded, **options) -> int:
    from diffeq_former.benchmarks.variants import variants

    benchmark = importlib.import_module(f"diffeq_former.benchmarks.{mode}").benchmark
    configs = variants(config, variant)
    reference, worse = _read_recorded(recorded, mode, configs), False
    for line in benchmark(configs, rounds, steps, **options):
        print_line({"mode": mode, **_where(), **line})
        if line["variant"] in reference:
            worse |= _is_worse(line, reference[line["variant"]])
    return process_exit.FAILED if worse else process_exit.OK


def torch(
    config, batch_sizes: list[str], compile=True, rounds: int = 5, steps: int = 3
) -> None:
    from diffeq_former.config import resolve

    resolved, sizes = resolve(config), cli.whole_numbers("batch_sizes", batch_sizes)
    require_extra("hf", "torch", "transformers")
    from diffeq_former.benchmarks.torch_train import benchmark, device_kind

    labels = {"mode": "train", "device": device_kind(), "num_devices": 1}
    for line in benchmark(resolved, sizes, rounds, steps, compile):
        print_line(labels | line)


def speculation(
    workdir: str,
    prompt: list[str],
    draft_steps: list[str],
    draft_tokens=("4",),
    rounds: int = 5,
    max_new_tokens: int = 100,
    temperature: float = 1.0,
    top_p: float = 1.0,
) -> None:
    from diffeq_former import compilation_cache
    from diffeq_former.benchmarks.speculation import benchmark
    from diffeq_former.inference.speculative import Draft
    from diffeq_former.training import run_directory

    steps = cli.whole_numbers("draft_steps", draft_steps, 0)
    tokens = cli.whole_numbers("draft_tokens", draft_tokens, 0)
    drafts = [Draft(*pair) for pair in itertools.product(steps, tokens)]
    compilation_cache.enable()
    own = run_directory.read_config(Path(workdir))
    for draft in drafts:
        draft.config(own.model)  # raises UserError before the checkpoint is read
    run = mesh_flags.load_run(workdir)
    model, tokenizer = run.config.model, run.tokenizer
    options = {"max_new_tokens": max_new_tokens, "temperature": temperature}
    options |= {"top_p": top_p}
    for line in benchmark(
        model, run.params, run.mesh, tokenizer, prompt, drafts, rounds, **options
    ):
        print_line(line)


def serve(
    workdir: str,
    prompt: list[str],
    clients=("1", "8", "32"),
    rounds: int = 5,
    max_new_tokens: int = 100,
) -> None:
    from diffeq_former.benchmarks.serve import benchmark
    from diffeq_former.training import run_directory

    numbers = cli.whole_numbers("clients", clients)
    run_directory.read_config(Path(workdir))  # raises UserError before the server does
    tool = str(Path(__file__).with_name("serve.py"))
    command = [sys.executable, tool, f"--workdir={workdir}", "--port=0"]
    for line in benchmark(command, prompt, numbers, rounds, max_new_tokens):
        print_line({"mode": "serve", **line})


def _read_recorded(path: str | None, mode: str, configs: dict) -> dict[str, float]:
    if not path:
        return {}
    recorded = read_object(Path(path))
    if mode != "train" or not recorded.keys() <= configs.keys():
        raise UserError(
            f"--recorded: expected the mode train and a --variant each for"
            f" {', '.join(recorded)}"
        )
    return recorded


def _is_worse(line: dict, recorded: float) -> bool:
    ratio, name = line["ratio"]["median"], line["variant"]
    worse = ratio > _TOLERANCE * recorded
    print(
        f"{name}: {ratio:.2f} times as fast as the config, {recorded:.2f} recorded:"
        f" {'WORSE' if worse else 'fine'}",
        file=sys.stderr,
    )
    return worse


def _where() -> dict:
    import jax

    device = jax.devices()[0]
    return {"device": device.device_kind, "num_devices": jax.device_count()}


OF_CONFIG = ("weights", "depth", "decode", "data", "startup")
MODES = {"train": train}
MODES |= {mode: functools.partial(of_config, mode) for mode in OF_CONFIG}
MODES |= {"torch": torch, "speculation": speculation, "serve": serve}

if __name__ == "__main__":
    cli.run_modes(MODES)
