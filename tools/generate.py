"""Continues prompts with a run's latest checkpoint.

tools/generate.py --workdir=runs/tiny --prompt="The list" --prompt="class " --seed=1

Stdout has each prompt with its continuation, as plain text; with several prompts, a
line of --- stands between one text and the next. A text stops where the model ends it,
or after --max_new_tokens. An empty --prompt= starts a new text.

The mesh is the run's own; where that does not suit the devices, choose another as for
training: --config.mesh.data=1 --config.mesh.fsdp=-1. Of several processes, started as
those of a training, the first writes.
"""

import dataclasses
from pathlib import Path

from absl import flags

from diffeq_former import cli, distributed
from diffeq_former.sharding import flags as mesh_flags

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
flags.adopt_module_key_flags(distributed)
flags.adopt_module_key_flags(mesh_flags)


def main() -> None:
    from diffeq_former import compilation_cache
    from diffeq_former.generation.sampling import Sampling
    from diffeq_former.generation.text import make_continue
    from diffeq_former.sharding.agreement import is_primary
    from diffeq_former.sharding.mesh import make_mesh
    from diffeq_former.training import run_directory

    distributed.start_from_flags()
    compilation_cache.enable()
    sampling = Sampling(_TEMPERATURE.value, _TOP_K.value, _TOP_P.value)
    own = run_directory.read_config(Path(_WORKDIR.value))
    mesh = make_mesh(mesh_flags.mesh_from_flags(own))
    run = run_directory.load(_WORKDIR.value, mesh)
    texts = make_continue(run.config.model, mesh, run.tokenizer)(
        run.params,
        _PROMPTS.value,
        max_new_tokens=_MAX_NEW_TOKENS.value,
        seed=_SEED.value,
        **dataclasses.asdict(sampling),
    )
    if is_primary():
        print("\n---\n".join(texts))


if __name__ == "__main__":
    cli.run(main)
