"""Merges an adapter into its run's weights: a plain run that needs no adapter.

tools/merge_lora.py --workdir=runs/tuned --output=runs/merged
tools/merge_lora.py --workdir=runs/base --adapter=adapter --output=runs/merged

The first takes a run that was trained with adapters; the second a run and an adapter
that tools/export_adapter.py, or PEFT, made for it. The new folder is a run at its step
0: tools/evaluate.py and tools/generate.py take it, and training goes on in it. Stdout
has one JSON object: workdir, adapter, output.

The mesh is the run's own; where that does not suit the devices, choose another as for
training: --config.mesh.data=1 --config.mesh.fsdp=-1.
"""

import json
from pathlib import Path

from absl import flags

from diffeq_former import cli
from diffeq_former.cli import mesh_flags

_WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder.", required=True)
_ADAPTER = flags.DEFINE_string("adapter", None, "An adapter's folder; else the run's.")
_OUTPUT = flags.DEFINE_string("output", None, "A new folder.", required=True)
flags.adopt_module_key_flags(mesh_flags)


def main() -> None:
    from diffeq_former.distributed.mesh import make_mesh
    from diffeq_former.finetuning.merge import merge_run
    from diffeq_former.training import run_directory

    workdir, output = Path(_WORKDIR.value), Path(_OUTPUT.value)
    adapter = Path(_ADAPTER.value) if _ADAPTER.value else None
    own = run_directory.read_config(workdir)
    mesh = make_mesh(mesh_flags.mesh_from_flags(own))
    merge_run(workdir, adapter, output, mesh)
    names = {"workdir": str(workdir), "adapter": _ADAPTER.value}
    print(json.dumps(names | {"output": str(output)}))


if __name__ == "__main__":
    cli.run(main)
