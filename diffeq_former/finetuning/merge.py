"""Adapters become part of the weights: the run is a plain layer_table again."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from diffeq_former.atomic_io import complete_or_nothing
from diffeq_former.config import Config, ModelConfig
from diffeq_former.distributed.mesh import on_mesh
from diffeq_former.errors import UserError
from diffeq_former.finetuning import adapters, write_run
from diffeq_former.models.lora import NAMES, scale
from diffeq_former.training import run_directory, state, trainable


def check_is_merged(c: ModelConfig, workdir: Path) -> None:
    """Raises UserError if the run's model has adapters beside its weights."""
    if c.lora_rank:
        raise UserError(
            f"{workdir} has adapters of its own; merge them first"
            f" (tools/convert.py merge_lora --workdir={workdir} --output=...)"
        )


def merged_params(c: ModelConfig, params: dict) -> dict:
    """The parameters without adapters, each W + A B alpha / r; float32."""

    def merged(unit: dict) -> dict:
        if "lora_a" not in unit:
            return unit
        product = _product(unit["lora_a"], unit["lora_b"])
        kernel = unit["kernel"] + scale(c) * product
        rest = {key: x for key, x in unit.items() if key not in NAMES}
        return rest | {"kernel": kernel}

    weights = {name: merged(unit) for name, unit in params["weights"].items()}
    return params | {"weights": weights}


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    """A [L, *inputs, r] times B [L, r, *outputs] in every layer."""
    exact = jax.lax.Precision.HIGHEST
    return jax.vmap(lambda a, b: jnp.tensordot(a, b, 1, precision=exact))(a, b)


def merge_run(workdir: Path, adapter: Path | None, output: Path, mesh: Mesh) -> Config:
    """Writes a run at its step 0 whose model is that of a run and its adapter.

    Args:
      workdir: The run's folder.
      adapter: Folder of an adapter in PEFT's format that was made for this run; None:
        the run has one of its own.
      output: The new run's folder, which must not exist. It is complete or not there.
      mesh: Where arrays lie meanwhile.

    Returns:
      The new run's config.

    Raises:
      UserError: for a run that cannot be read or an adapter that is not its own, or the
        output.
    """
    own = run_directory.read_config(workdir)
    if not adapter and not own.model.lora_rank:
        raise UserError(f"{workdir} has no adapter to merge: name one with --adapter")
    if adapter and own.model.lora_rank:
        raise UserError(
            f"{workdir} has an adapter of its own: merge that first, without --adapter"
        )
    plain = dataclasses.replace(own, model=own.model.without_adapters())
    plain = write_run.of_its_own(plain)
    with complete_or_nothing(output) as folder:
        run = run_directory.load(workdir, mesh)
        model, params = own.model, run.params
        if adapter:
            model, added = adapters.load(adapter, model, params)
            params = trainable.join(added, params)
        make = jax.jit(
            lambda params: merged_params(model, params),
            out_shardings=state.shardings(plain, mesh).params,
        )
        write_run.write(folder, plain, on_mesh(mesh, make)(params), workdir, mesh)
    return plain
