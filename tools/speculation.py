"""Benchmarks self-speculative decoding with a run's latest checkpoint.

tools/speculation.py --workdir=runs/any --prompt="It was" --draft_steps=2,3,4 \
    --draft_tokens=2,4

Each line on stdout is a JSON object: draft_steps and draft_tokens (0 for plain
decoding, the first line), acceptance (accepted / drafted tokens), tokens_per_second of
all prompts together, and speed_up over plain decoding, as median, low and high of the
rounds. See docs/serving.md.
"""

import itertools
import json
from pathlib import Path

from absl import flags

from diffeq_former import cli
from diffeq_former.cli import mesh_flags

_WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder.", required=True)
_PROMPTS = flags.DEFINE_multi_string(
    "prompt", None, "A text to continue; may be repeated.", required=True
)
_DRAFT_STEPS = flags.DEFINE_list(
    "draft_steps", None, "Solver steps of the drafts.", required=True
)
_DRAFT_TOKENS = flags.DEFINE_list(
    "draft_tokens", ["4"], "Numbers of tokens to draft per round."
)
_MAX_NEW_TOKENS = flags.DEFINE_integer(
    "max_new_tokens", 100, "Maximum number of new tokens per prompt."
)
_TEMPERATURE = flags.DEFINE_float(
    "temperature", 1.0, "Sampling temperature; 0: the most likely token."
)
_TOP_P = flags.DEFINE_float(
    "top_p", 1.0, "Nucleus sampling: cumulative probability of the kept tokens."
)
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Number of timed rounds.", lower_bound=1)
flags.adopt_module_key_flags(mesh_flags)


def main() -> None:
    from diffeq_former import compilation_cache
    from diffeq_former.benchmarks.speculation import benchmark
    from diffeq_former.distributed.mesh import make_mesh
    from diffeq_former.inference.speculative import Draft
    from diffeq_former.training import run_directory

    steps = _numbers("draft_steps", _DRAFT_STEPS.value)
    tokens = _numbers("draft_tokens", _DRAFT_TOKENS.value)
    drafts = [Draft(*pair) for pair in itertools.product(steps, tokens)]
    compilation_cache.enable()
    own = run_directory.read_config(Path(_WORKDIR.value))
    for draft in drafts:
        draft.config(own.model)  # raises UserError before the checkpoint is read
    mesh = make_mesh(mesh_flags.mesh_from_flags(own))
    run = run_directory.load(_WORKDIR.value, mesh)
    for line in benchmark(
        run.config.model,
        run.params,
        mesh,
        run.tokenizer,
        _PROMPTS.value,
        drafts,
        _ROUNDS.value,
        max_new_tokens=_MAX_NEW_TOKENS.value,
        temperature=_TEMPERATURE.value,
        top_p=_TOP_P.value,
    ):
        print(json.dumps(line), flush=True)


def _numbers(name: str, values: list[str]) -> list[int]:
    from diffeq_former.errors import UserError

    try:
        return [int(value) for value in values]
    except ValueError as error:
        raise UserError(
            f"--{name}={','.join(values)}: expected whole numbers"
        ) from error


if __name__ == "__main__":
    cli.run(main)
