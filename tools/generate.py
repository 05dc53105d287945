"""Continues prompts with a run's latest checkpoint.

tools/generate.py --workdir=runs/tiny --prompt="The list" --prompt="class " --seed=1

Stdout has each prompt with its continuation, as plain text; with several prompts, a
line of --- stands between one text and the next. A text stops where the model ends it,
before the first --stop, or after --max_new_tokens. An empty --prompt= starts a new
text. With --stream the text of one prompt is printed as it comes.

With --draft_steps the model in so few solver steps drafts tokens, which the model in
all its steps then accepts or not: what is drawn has the same distribution, greedy it is
the same text. Stderr has a line of JSON then: drafted and accepted (tokens),
acceptance (their quotient), seconds and tokens_per_second (with the compilation).

The mesh is the run's own; where that does not suit the devices, choose another as for
training: --config.mesh.data=1 --config.mesh.fsdp=-1. Of several processes, started as
those of a training, the first writes.
"""

import dataclasses
import json
import sys
import time
from pathlib import Path

from absl import flags

from diffeq_former import cli
from diffeq_former.cli import mesh_flags, process_flags

_WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder.", required=True)
_PROMPTS = flags.DEFINE_multi_string(
    "prompt", None, "The text to continue; give it again for more.", required=True
)
_MAX_NEW_TOKENS = flags.DEFINE_integer(
    "max_new_tokens", 100, "How many tokens may follow a prompt."
)
_TEMPERATURE = flags.DEFINE_float(
    "temperature", 1.0, "Divides the logits; 0 takes the most likely token."
)
_TOP_K = flags.DEFINE_integer(
    "top_k", 0, "Draw among the k most likely tokens only; 0: among all."
)
_TOP_P = flags.DEFINE_float(
    "top_p", 1.0, "Draw among the fewest tokens with this probability together."
)
_SEED = flags.DEFINE_integer(
    "seed",
    0,
    "Of the draws; prompt number i (from 0) draws with seed + i.",
    lower_bound=0,
    upper_bound=2**31,
)
_STOP = flags.DEFINE_multi_string(
    "stop", [], "A text ends before this string; give it again for more."
)
_STREAM = flags.DEFINE_bool("stream", False, "Print the text as it comes.")
_DRAFT_STEPS = flags.DEFINE_integer(
    "draft_steps", 0, "Solver steps of a draft; 0: tokens are not drafted."
)
_DRAFT_TOKENS = flags.DEFINE_integer(
    "draft_tokens", 4, "How many tokens are drafted before the model looks at them."
)
flags.adopt_module_key_flags(process_flags)
flags.adopt_module_key_flags(mesh_flags)


def main() -> None:
    from diffeq_former import compilation_cache
    from diffeq_former.distributed.mesh import make_mesh
    from diffeq_former.distributed.multihost import is_primary
    from diffeq_former.inference.generate import Generator
    from diffeq_former.inference.sampling import Sampling
    from diffeq_former.inference.text import continue_texts
    from diffeq_former.training import run_directory

    _check_flags()
    process_flags.start_from_flags()
    compilation_cache.enable()
    sampling = Sampling(_TEMPERATURE.value, _TOP_K.value, _TOP_P.value)
    own = run_directory.read_config(Path(_WORKDIR.value))
    mesh = make_mesh(mesh_flags.mesh_from_flags(own))
    draft = _draft()
    if draft:
        draft.config(own.model)  # is refused before the checkpoint is read
    run = run_directory.load(_WORKDIR.value, mesh)
    generator = Generator(run.config.model, mesh, run.tokenizer.vocab_size, draft)
    printer = _Printer() if _STREAM.value and is_primary() else None
    start = time.perf_counter()
    texts = continue_texts(
        generator,
        run.tokenizer,
        run.params,
        _PROMPTS.value,
        max_new_tokens=_MAX_NEW_TOKENS.value,
        seed=_SEED.value,
        stop=_STOP.value,
        show=printer,
        **dataclasses.asdict(sampling),
    )
    seconds = time.perf_counter() - start
    if is_primary():
        text = "\n---\n".join(texts)
        print(text.removeprefix(printer.text) if printer else text)
        if draft:
            print(json.dumps(_figures(generator, seconds)), file=sys.stderr)


def _check_flags() -> None:
    from diffeq_former.errors import UserError

    if _STREAM.value and len(_PROMPTS.value) > 1:
        raise UserError(
            f"--stream: expected one --prompt, got {len(_PROMPTS.value)}; leave it out"
            " for several"
        )


def _draft():
    from diffeq_former.inference.speculative import Draft

    steps = _DRAFT_STEPS.value
    return Draft(steps, _DRAFT_TOKENS.value) if steps else None


class _Printer:
    def __init__(self):
        self.text = ""  # that was printed

    def __call__(self, row: int, new: str) -> None:
        self.text += new
        print(new, end="", flush=True)


def _figures(generator, seconds: float) -> dict:
    drafted, accepted = generator.num_drafted, generator.num_accepted
    return {
        "drafted": drafted,
        "accepted": accepted,
        "acceptance": accepted / max(1, drafted),
        "seconds": seconds,
        "tokens_per_second": generator.num_new / seconds,
    }


if __name__ == "__main__":
    cli.run(main)
