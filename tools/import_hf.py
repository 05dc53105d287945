"""Imports a GPT-2, GPT-NeoX, Llama, Mistral or Qwen from a Hugging Face folder.

tools/import_hf.py --model=models/gpt2 --output=runs/gpt2
tools/import_hf.py --model=models/gpt2 --output=runs/gpt2-flow --hypernetwork

The new folder is a run at step 0 with the tokenizer of the model. tools/evaluate.py
(with --data), tools/generate.py and tools/export_hf.py accept it. With --hypernetwork,
a weight function W(t) is fitted to the weights of the layers at their times, so that
the model is continuous in depth. The fit is exact if --time_embed_dim is at least the
number of layers.

No code in the folder is run, and nothing is unpickled. One JSON object is printed on
stdout: model, output, block, num_layers, and for a hypernetwork time_embed_dim and
error, the largest relative error of the weights of a linear layer or norm.

The mesh of the new run is chosen as in training: --config.mesh.data=1
--config.mesh.fsdp=-1.
"""

import sys
from pathlib import Path

from absl import flags

from diffeq_former import cli
from diffeq_former.cli import mesh_flags
from diffeq_former.json_io import print_line

_MODEL = flags.DEFINE_string("model", None, "The Hugging Face folder.", required=True)
_OUTPUT = flags.DEFINE_string("output", None, "A new folder.", required=True)
_HYPERNETWORK = flags.DEFINE_bool(
    "hypernetwork",
    False,
    "Fit a hypernetwork, which is continuous in depth; by default keep a layer_table.",
)
_TIME_EMBED_DIM = flags.DEFINE_integer(
    "time_embed_dim",
    None,
    "Size of the hypernetwork's time embedding; by default the number of layers.",
    lower_bound=1,
)
_DTYPE = flags.DEFINE_enum(
    "dtype",
    None,
    ["float32", "bfloat16"],
    "In which the model is computed; by default float32 if it is stored in float32,"
    " otherwise bfloat16.",
)
flags.adopt_module_key_flags(mesh_flags)


def main() -> None:
    from diffeq_former.config import Config
    from diffeq_former.conversion.import_run import import_run
    from diffeq_former.distributed.mesh import make_mesh
    from diffeq_former.errors import UserError

    if _TIME_EMBED_DIM.value is not None and not _HYPERNETWORK.value:
        raise UserError("--time_embed_dim: requires --hypernetwork; add that flag")
    dim = (_TIME_EMBED_DIM.value or 0) if _HYPERNETWORK.value else None
    path, output = Path(_MODEL.value), Path(_OUTPUT.value)
    mesh_config = mesh_flags.mesh_from_flags(Config())
    mesh = make_mesh(mesh_config)
    config, errors = import_run(path, output, mesh_config, mesh, dim, _DTYPE.value)
    model = config.model
    report = {"model": str(path), "output": str(output)}
    report |= {"block": model.block, "num_layers": model.num_layers}
    if errors:
        E, L = model.time_embed_dim, model.num_layers
        report |= {"time_embed_dim": E, "error": max(errors.values())}
        if E < L:
            _warn(f"{output}: {L} layers fitted with time_embed_dim={E}", errors)
    print_line(report)


def _warn(what: str, errors: dict[str, float]) -> None:
    parts = ", ".join(f"{name} {error:.2g}" for name, error in errors.items())
    print(f"{what}: relative errors of the weights: {parts}", file=sys.stderr)


if __name__ == "__main__":
    cli.run(main)
