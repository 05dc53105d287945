"""Writes a run's latest checkpoint as a Hugging Face folder.

tools/export_hf.py --workdir=runs/plain --output=exports/plain
tools/export_hf.py --workdir=runs/small --num_steps=12 --output=exports/small-12

A model with the solver lie_trotter becomes a GPT-2, Llama or Qwen, and a llama with
euler a Cohere 2, which transformers loads without custom code. Other models are
exported with one file of model code, which is loaded with trust_remote_code=True and
needs PyTorch, not JAX. See docs/conversion.md. A continuous model is discretised into
--num_steps layers.

Before the folder appears, the export is read back and its logits are compared with the
run's. One JSON object is printed on stdout: workdir, output, architecture, num_layers,
dtype, difference (of the logits, relative to the largest one).

The mesh is that of the run; if it does not fit the devices, choose another one as in
training: --config.mesh.data=1 --config.mesh.fsdp=-1.
"""

import sys
from pathlib import Path

from absl import flags

from diffeq_former import cli
from diffeq_former.cli import mesh_flags
from diffeq_former.json_io import print_line

_WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder.", required=True)
_OUTPUT = flags.DEFINE_string("output", None, "A new folder.", required=True)
_DTYPE = flags.DEFINE_enum(
    "dtype", "float32", ["float32", "bfloat16"], "The type of the stored tensors."
)
_NUM_STEPS = flags.DEFINE_integer(
    "num_steps",
    None,
    "Number of layers to discretise a continuous model into; by default its number of"
    " solver steps.",
)
flags.adopt_module_key_flags(mesh_flags)


def main() -> None:
    from diffeq_former.conversion.diffeq_former_hf import CODE, OWN
    from diffeq_former.conversion.export_run import export_run
    from diffeq_former.training import run_directory

    workdir, output = Path(_WORKDIR.value), Path(_OUTPUT.value)
    config = run_directory.read_config(workdir)
    mesh = mesh_flags.make_mesh(config)
    exported = export_run(workdir, output, mesh, _DTYPE.value, _NUM_STEPS.value)
    if exported.architecture is OWN:
        print(
            f"{output}: this model is not part of transformers; load it with"
            f" trust_remote_code=True, which runs {CODE.name} from the folder",
            file=sys.stderr,
        )
    report = {
        "workdir": str(workdir),
        "output": str(output),
        "architecture": exported.architecture.class_name,
        "num_layers": exported.num_layers,
        "dtype": _DTYPE.value,
        "difference": exported.difference,
    }
    print_line(report)


if __name__ == "__main__":
    cli.run(main)
