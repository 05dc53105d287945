"""Writes a run's adapter alone, as PEFT loads it onto the base's Hugging Face twin.

tools/export_adapter.py --workdir=runs/tuned --output=adapter

For runs whose base is a plain transformer: a layer_table with lie_trotter. The folder
gets adapter_model.safetensors and adapter_config.json, which tools/merge_lora.py takes.
Stdout has one JSON object: workdir, step, output.

The mesh is the run's own; where that does not suit the devices, choose another as for
training: --config.mesh.data=1 --config.mesh.fsdp=-1.
"""

import json
from pathlib import Path

from absl import flags

from diffeq_former import cli
from diffeq_former.cli import mesh_flags

_WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder.", required=True)
_OUTPUT = flags.DEFINE_string("output", None, "A new folder.", required=True)
flags.adopt_module_key_flags(mesh_flags)


def main() -> None:
    from diffeq_former.atomic_io import complete_or_nothing
    from diffeq_former.distributed.mesh import make_mesh
    from diffeq_former.finetuning import adapters
    from diffeq_former.training import run_directory

    workdir, output = Path(_WORKDIR.value), Path(_OUTPUT.value)
    own = run_directory.read_config(workdir)
    mesh = make_mesh(mesh_flags.mesh_from_flags(own))
    with complete_or_nothing(output) as folder:
        run = run_directory.load(workdir, mesh)
        adapters.save(folder, run.config, run.params)
    names = {"workdir": str(workdir), "step": run.step}
    print(json.dumps(names | {"output": str(output)}))


if __name__ == "__main__":
    cli.run(main)
