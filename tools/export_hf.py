"""Writes a run's latest checkpoint as a Hugging Face folder.

tools/export_hf.py --workdir=runs/plain --output=exports/plain
tools/export_hf.py --workdir=runs/small --num_steps=12 --output=exports/small-12

A model whose solver is lie_trotter becomes a GPT2LMHeadModel or a LlamaForCausalLM,
which transformers and what builds on it load without any code of ours. Others become a
folder with one file of code, for trust_remote_code=True; it needs PyTorch, not JAX. A
continuous model is cut into --num_steps layers.

What is written is read again, and its logits compared with the run's, before the
folder is there. Stdout has one JSON object: workdir, output, architecture, num_layers,
dtype, difference (of the logits, relative to the largest).

The mesh is the run's own; where that does not suit the devices, choose another as for
training: --config.mesh.data=1 --config.mesh.fsdp=-1.
"""

import json
import sys
from pathlib import Path

from absl import flags

from diffeq_former import cli
from diffeq_former.cli import mesh_flags

_WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder.", required=True)
_OUTPUT = flags.DEFINE_string("output", None, "A new folder.", required=True)
_DTYPE = flags.DEFINE_enum(
    "dtype", "float32", ["float32", "bfloat16"], "In which the tensors are stored."
)
_NUM_STEPS = flags.DEFINE_integer(
    "num_steps", None, "Layers of a continuous model; else as many as its steps."
)
flags.adopt_module_key_flags(mesh_flags)


def main() -> None:
    from diffeq_former.conversion.diffeq_former_hf import CODE, OWN
    from diffeq_former.conversion.export_run import export_run
    from diffeq_former.distributed.mesh import make_mesh
    from diffeq_former.training import run_directory

    workdir, output = Path(_WORKDIR.value), Path(_OUTPUT.value)
    own = run_directory.read_config(workdir)
    mesh = make_mesh(mesh_flags.mesh_from_flags(own))
    done = export_run(workdir, output, mesh, _DTYPE.value, _NUM_STEPS.value)
    if done.architecture is OWN:
        print(
            f"{output}: transformers has no such model; load it with"
            f" trust_remote_code=True, which runs {CODE.name} of the folder",
            file=sys.stderr,
        )
    said = {
        "workdir": str(workdir),
        "output": str(output),
        "architecture": done.architecture.class_name,
        "num_layers": done.num_layers,
        "dtype": _DTYPE.value,
        "difference": done.difference,
    }
    print(json.dumps(said))


if __name__ == "__main__":
    cli.run(main)
