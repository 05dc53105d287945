"""Cuts a continuous run into layers: its latest checkpoint becomes a layer_table run.

tools/discretise.py --workdir=runs/small --num_steps=12 --output=runs/small-12

The new folder is a run at its step 0: tools/evaluate.py and tools/generate.py take it,
and training goes on in it with the settings that are printed on stderr. Stdout has one
JSON object: workdir, num_steps, output. Not for models whose solver is midpoint, heun
or rk4: their steps need more weights than a layer has.

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
_NUM_STEPS = flags.DEFINE_integer(
    "num_steps", None, "Solver steps over depth, which become layers.", required=True
)
_OUTPUT = flags.DEFINE_string("output", None, "A new folder.", required=True)
flags.adopt_module_key_flags(mesh_flags)


def main() -> None:
    from diffeq_former.config.dataclass_config import differences
    from diffeq_former.distributed.mesh import make_mesh
    from diffeq_former.finetuning.discretise import discretise_run
    from diffeq_former.training import run_directory

    workdir, output = Path(_WORKDIR.value), Path(_OUTPUT.value)
    own = run_directory.read_config(workdir)
    mesh = make_mesh(mesh_flags.mesh_from_flags(own))
    config = discretise_run(workdir, _NUM_STEPS.value, output, mesh)
    print(f"{output}: {'; '.join(differences(own, config))}", file=sys.stderr)
    names = {"workdir": str(workdir), "num_steps": _NUM_STEPS.value}
    print(json.dumps(names | {"output": str(output)}))


if __name__ == "__main__":
    cli.run(main)
