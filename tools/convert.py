"""Makes another run, or an adapter, from a run's latest checkpoint.

tools/convert.py discretise --workdir=runs/small --num_steps=12 --output=runs/small-12
tools/convert.py merge_lora --workdir=runs/tuned --output=runs/merged
tools/convert.py merge_lora --workdir=runs/base --adapter=adapter --output=runs/merged
tools/convert.py export_adapter --workdir=runs/tuned --output=adapter

discretise makes a layer_table with a layer for each of --num_steps solver steps. Not
for midpoint, heun and rk4, whose steps need more weights than a layer has.

merge_lora makes a plain run that needs no adapter: of a run that was trained with
adapters, or of a run and an --adapter that export_adapter, or PEFT, made for it.

export_adapter writes a run's adapter alone, as PEFT loads it onto the Hugging Face
model of the base, which must be a layer_table with lie_trotter. The folder gets
adapter_model.safetensors and adapter_config.json.

A new run stands at its step 0: evaluate.py and generate.py take it, and training
continues in it with the settings that are printed on stderr. Stdout has one JSON
object: workdir, output, and what was asked for. The mesh is the run's own; where that
does not suit the devices, choose another as for training: --config.mesh.data=1
--config.mesh.fsdp=-1.
"""

import json
import sys
from pathlib import Path

from absl import flags

from diffeq_former import cli
from diffeq_former.cli import mesh_flags

flags.DEFINE_string("workdir", None, "The run's folder.", required=True)
flags.DEFINE_string("output", None, "A new folder.", required=True)
flags.DEFINE_integer("num_steps", None, "Solver steps over depth, which become layers.")
flags.DEFINE_string("adapter", None, "An adapter's folder; else the run's own.")
flags.adopt_module_key_flags(mesh_flags)


def discretise(workdir: str, output: str, num_steps: int) -> None:
    from diffeq_former.config.dataclass_config import differences
    from diffeq_former.finetuning.discretise import discretise_run

    own, mesh = _config_and_mesh(workdir)
    config = discretise_run(Path(workdir), num_steps, Path(output), mesh)
    print(f"{output}: {'; '.join(differences(own, config))}", file=sys.stderr)
    _report(workdir=workdir, num_steps=num_steps, output=output)


def merge_lora(workdir: str, output: str, adapter: str | None = None) -> None:
    from diffeq_former.finetuning.merge import merge_run

    _, mesh = _config_and_mesh(workdir)
    merge_run(Path(workdir), Path(adapter) if adapter else None, Path(output), mesh)
    _report(workdir=workdir, adapter=adapter, output=output)


def export_adapter(workdir: str, output: str) -> None:
    from diffeq_former.atomic_io import complete_or_nothing
    from diffeq_former.finetuning import adapters
    from diffeq_former.training import run_directory

    _, mesh = _config_and_mesh(workdir)
    with complete_or_nothing(Path(output)) as folder:
        run = run_directory.load(workdir, mesh)
        adapters.save(folder, run.config, run.params)
    _report(workdir=workdir, step=run.step, output=output)


def _config_and_mesh(workdir: str):
    from diffeq_former.distributed.mesh import make_mesh
    from diffeq_former.training import run_directory

    own = run_directory.read_config(Path(workdir))
    return own, make_mesh(mesh_flags.mesh_from_flags(own))


def _report(**values: object) -> None:
    print(json.dumps(values))


MODES = {f.__name__: f for f in (discretise, merge_lora, export_adapter)}

if __name__ == "__main__":
    cli.run_modes(MODES)
