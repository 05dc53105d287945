"""Makes a run of a Hugging Face folder: GPT-2 or Llama, from disk.

tools/import_hf.py --model=models/gpt2 --output=runs/gpt2
tools/import_hf.py --model=models/gpt2 --output=runs/gpt2-flow --hypernetwork

The new folder is a run at its step 0, with the folder's tokenizer. tools/evaluate.py
(with --data), tools/generate.py and tools/export_hf.py take it. With --hypernetwork the
layers become the values of a weight function W(t) at the times of the layers, exactly
where --time_embed_dim is their number or more, so that depth is continuous from there.

Nothing in the folder is run or unpickled. Stdout has one JSON object: model, output,
block, num_layers, and of a hypernetwork time_embed_dim and error, the largest relative
error of a unit's weights.

The new run's mesh is chosen as for training: --config.mesh.data=1
--config.mesh.fsdp=-1.
"""

import json
import sys
from pathlib import Path

from absl import flags

from diffeq_former import cli
from diffeq_former.cli import mesh_flags

_MODEL = flags.DEFINE_string("model", None, "The folder.", required=True)
_OUTPUT = flags.DEFINE_string("output", None, "A new folder.", required=True)
_HYPERNETWORK = flags.DEFINE_bool(
    "hypernetwork", False, "Make it continuous in depth; else it is a layer_table."
)
_TIME_EMBED_DIM = flags.DEFINE_integer(
    "time_embed_dim",
    None,
    "E of the hypernetwork; else as many as layers.",
    lower_bound=1,
)
flags.adopt_module_key_flags(mesh_flags)


def main() -> None:
    from diffeq_former.config import Config
    from diffeq_former.conversion.import_run import import_run
    from diffeq_former.distributed.mesh import make_mesh
    from diffeq_former.errors import UserError

    if _TIME_EMBED_DIM.value is not None and not _HYPERNETWORK.value:
        raise UserError("--time_embed_dim: only a --hypernetwork has one; add that")
    dim = (_TIME_EMBED_DIM.value or 0) if _HYPERNETWORK.value else None
    path, output = Path(_MODEL.value), Path(_OUTPUT.value)
    mesh_config = mesh_flags.mesh_from_flags(Config())
    mesh = make_mesh(mesh_config)
    config, errors = import_run(path, output, mesh_config, mesh, dim)
    model = config.model
    said = {"model": str(path), "output": str(output)}
    said |= {"block": model.block, "num_layers": model.num_layers}
    if errors:
        E, L = model.time_embed_dim, model.num_layers
        said |= {"time_embed_dim": E, "error": max(errors.values())}
        if E < L:
            _warn(f"{output}: {L} layers in {E} dimensions of time", errors)
    print(json.dumps(said))


def _warn(what: str, errors: dict[str, float]) -> None:
    parts = ", ".join(f"{name} {error:.2g}" for name, error in errors.items())
    print(f"{what}: relative errors of the weights: {parts}", file=sys.stderr)


if __name__ == "__main__":
    cli.run(main)
