"""Merging of adapters into the weights, which gives a plain layer_table again."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from diffeq_former.atomic_io import atomic_directory
from diffeq_former.config import Config, ModelConfig
from diffeq_former.distributed.mesh import on_mesh
from diffeq_former.errors import UserError
from diffeq_former.finetuning import adapters, write_run
from diffeq_former.models.lora import NAMES, scale
from diffeq_former.training import parts, run_directory, state


def check_is_merged(c: ModelConfig, workdir: Path) -> None:
    """Raise UserError if the model of a run has adapters that are not merged."""
    if c.lora_rank:
        raise UserError(
            f"{workdir} has adapters of its own; merge them first"
            f" (tools/convert.py merge_lora --workdir={workdir} --output=...)"
        )


def merged_params(c: ModelConfig, params: dict) -> dict:
    """Return the parameters without adapters: each kernel is W + A B alpha / r."""

    def merge(layer: dict) -> dict:
        if "lora_a" not in layer:
            return layer
        product = _product(layer["lora_a"], layer["lora_b"])
        kernel = layer["kernel"] + scale(c) * product
        others = {key: x for key, x in layer.items() if key not in NAMES}
        return others | {"kernel": kernel}

    weights = {name: merge(layer) for name, layer in params["weights"].items()}
    return params | {"weights": weights}


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    """Multiply A [L, *inputs, r] by B [L, r, *outputs] in each layer."""
    exact = jax.lax.Precision.HIGHEST
    return jax.vmap(lambda a, b: jnp.tensordot(a, b, 1, precision=exact))(a, b)


def merge_run(workdir: Path, adapter: Path | None, output: Path, mesh: Mesh) -> Config:
    """Merge an adapter into the latest checkpoint of a run; write a new run at step 0.

    Args:
      workdir: The run's folder.
      adapter: The folder of an adapter in PEFT's format that was made for this run;
        None: use the adapter that the run itself was trained with.
      output: The folder of the new run, which must not exist; written atomically.
      mesh: Mesh on which the arrays are computed.

    Returns:
      The config of the new run.

    Raises:
      UserError: If the run cannot be read, the adapter is missing or was made for
        another run, or `output` exists.
    """
    source = run_directory.read_config(workdir)
    if not adapter and not source.model.lora_rank:
        raise UserError(f"{workdir} has no adapter to merge: name one with --adapter")
    if adapter and source.model.lora_rank:
        raise UserError(
            f"{workdir} has an adapter of its own: merge that first, without --adapter"
        )
    plain = dataclasses.replace(source, model=source.model.without_adapters())
    plain = write_run.without_finetuning(plain)
    with atomic_directory(output) as folder:
        run = run_directory.load(workdir, mesh)
        model, params = source.model, run.params
        if adapter:
            model, adapter_params = adapters.load(adapter, model, params)
            params = parts.merge(adapter_params, params)
        merge = jax.jit(
            lambda params: merged_params(model, params),
            out_shardings=state.shardings(plain, mesh).params,
        )
        write_run.write(folder, plain, on_mesh(mesh, merge)(params), workdir, mesh)
    return plain
