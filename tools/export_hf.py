"""Writes a run's latest checkpoint as a Hugging Face folder.

tools/export_hf.py --workdir=runs/plain --output=exports/plain
tools/export_hf.py --workdir=runs/small --num_steps=12 --output=exports/small-12

A model with the solver lie_trotter becomes a GPT-2, Llama or Qwen; with euler, a gpt
with rotary positions becomes a GPT-NeoX, and a llama a Cohere 2. These transformers
loads without custom code. Other models are exported with one file of model code, which
is loaded with trust_remote_code=True and needs PyTorch, not JAX. A continuous model is
discretised into --num_steps layers. See docs/conversion.md.

Before the folder appears, the export is read back and its logits are compared with the
run's. One JSON object is printed on stdout: workdir, output, architecture, num_layers,
dtype, difference (of the logits, relative to the largest one); url, if it is uploaded.

README.md in the folder is the model card: settings, data, validation metrics, versions,
how to load the model and how to change its depth. With --push_to_hub=USER/MODEL, the
folder is uploaded to the Hugging Face hub, after `hf auth login` or with HF_TOKEN. If
that fails, the folder stays, and the exit code is 2.

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
_LICENSE = flags.DEFINE_string(
    "license",
    None,
    "License for the model card: apache-2.0; default: the card has none.",
)
_PUSH_TO_HUB = flags.DEFINE_string(
    "push_to_hub", None, "Repository on the hub, such as user/model, to upload to."
)
flags.adopt_module_key_flags(mesh_flags)


def main() -> None:
    from diffeq_former.conversion import hub
    from diffeq_former.conversion.diffeq_former_hf import CODE, OWN

    workdir, output = Path(_WORKDIR.value), Path(_OUTPUT.value)
    if _PUSH_TO_HUB.value is not None:
        hub.check_name(_PUSH_TO_HUB.value)
    depth = {} if _NUM_STEPS.value is None else {"num_steps": _NUM_STEPS.value}
    run = mesh_flags.load_run(workdir, **depth)
    exported = run.export(output, dtype=_DTYPE.value, license=_LICENSE.value)
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
    if _PUSH_TO_HUB.value is not None:
        report["url"] = hub.push(output, _PUSH_TO_HUB.value)
    print_line(report)


if __name__ == "__main__":
    cli.run(main)
