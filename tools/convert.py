"""Converts a run's latest checkpoint to another run or to an adapter.

tools/convert.py discretise --workdir=runs/small --num_steps=12 --output=runs/small-12
tools/convert.py merge_lora --workdir=runs/tuned --output=runs/merged
tools/convert.py merge_lora --workdir=runs/base --adapter=adapter --output=runs/merged
tools/convert.py export_adapter --workdir=runs/tuned --output=adapter

discretise writes a layer_table with one layer for each of --num_steps solver steps. It
does not support midpoint, heun and rk4, which need several weights per step.

merge_lora writes a run without adapters: from a run that was trained with adapters, or
from a run and an --adapter that export_adapter or PEFT wrote for it.

export_adapter writes the adapter of a run alone, in the format that PEFT loads onto the
Hugging Face equivalent of the base, which must be a layer_table with lie_trotter. The
folder contains adapter_model.safetensors and adapter_config.json.

A new run is at step 0: evaluate.py and generate.py accept it, and training can be
continued in its folder; discretise prints the config fields that differ from the old
run on stderr. One JSON object is printed on stdout: workdir, output, and the other
arguments or the step. The mesh is that of the run; if it does not fit the devices,
choose another one as in training: --config.mesh.data=1 --config.mesh.fsdp=-1.
"""

import sys
from pathlib import Path

from absl import flags

from diffeq_former import cli
from diffeq_former.cli import mesh_flags
from diffeq_former.json_io import print_line

flags.DEFINE_string("workdir", None, "The run's folder.")
flags.DEFINE_string("output", None, "A new folder.")
flags.DEFINE_integer("num_steps", None, "Number of solver steps, which become layers.")
flags.DEFINE_string(
    "adapter", None, "The folder of an adapter; by default that of the run itself."
)
flags.adopt_module_key_flags(mesh_flags)


def discretise(workdir: str, output: str, num_steps: int) -> None:
    from diffeq_former.config.dataclass_config import differences
    from diffeq_former.finetuning.discretise import discretise_run

    source, mesh = _config_and_mesh(workdir)
    config = discretise_run(Path(workdir), num_steps, Path(output), mesh)
    if changes := differences(source, config):
        print(f"{output}: {'; '.join(changes)}", file=sys.stderr)
    _report(workdir=workdir, num_steps=num_steps, output=output)


def merge_lora(workdir: str, output: str, adapter: str | None = None) -> None:
    from diffeq_former.finetuning.merge import merge_run

    _, mesh = _config_and_mesh(workdir)
    merge_run(Path(workdir), Path(adapter) if adapter else None, Path(output), mesh)
    _report(workdir=workdir, adapter=adapter, output=output)


def export_adapter(workdir: str, output: str) -> None:
    from diffeq_former.atomic_io import atomic_directory
    from diffeq_former.finetuning import adapters
    from diffeq_former.training import run_directory

    _, mesh = _config_and_mesh(workdir)
    with atomic_directory(Path(output)) as folder:
        run = run_directory.load(workdir, mesh)
        adapters.save(folder, run.config, run.params)
    _report(workdir=workdir, step=run.step, output=output)


def _config_and_mesh(workdir: str):
    from diffeq_former.training import run_directory

    config = run_directory.read_config(Path(workdir))
    return config, mesh_flags.make_mesh(config)


def _report(**values: object) -> None:
    print_line(values)


MODES = {f.__name__: f for f in (discretise, merge_lora, export_adapter)}

if __name__ == "__main__":
    cli.run_modes(MODES)
