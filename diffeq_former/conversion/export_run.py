"""From a run to a Hugging Face folder, which is read again before it is done.

B batch, L length, V vocabulary.
"""

import dataclasses
import functools
import shutil
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from diffeq_former.atomic_io import complete_or_nothing
from diffeq_former.config import Config, ModelConfig
from diffeq_former.conversion import hf_folder, hf_tokenizer, import_run
from diffeq_former.conversion.architecture import Architecture, to_tensors
from diffeq_former.conversion.architectures import of_model
from diffeq_former.conversion.diffeq_former_hf import CODE, OWN
from diffeq_former.distributed.mesh import on_mesh
from diffeq_former.errors import UserError
from diffeq_former.finetuning.discretise import discrete_model, discrete_params
from diffeq_former.finetuning.merge import check_is_merged
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.transformer import Transformer
from diffeq_former.models.units import with_step_lengths
from diffeq_former.training import run_directory, state

# How far logits may be from the run's, relative to the largest: in float32 by rounding
# of what is computed, in bfloat16 by that of the weights to 8 bits.
TOLERANCES = {"float32": 1e-4, "bfloat16": 5e-2}
_TOKENS_COMPARED = (2, 64)


class Exported(NamedTuple):
    architecture: Architecture
    num_layers: int
    difference: float  # of the logits, relative to the largest


def export_run(
    workdir: Path, output: Path, mesh: Mesh, dtype: str, num_steps: int | None = None
) -> Exported:
    """Writes a run's latest checkpoint as a folder that `transformers` loads.

    Args:
      workdir: The run's folder.
      output: The new folder, which must not exist. It is complete or not there.
      mesh: Where arrays lie meanwhile.
      dtype: Of the tensors, float32 or bfloat16.
      num_steps: Layers into which a continuous model is cut; None: its own steps.

    Raises:
      UserError: for a run that cannot be read or cut, or has adapters, or if the
        folder, read again, does not compute what the run does; then it is not left
        behind.
    """
    own = run_directory.read_config(workdir).model
    check_is_merged(own, workdir)
    continuous = own.weights != "layer_table" or num_steps is not None
    num_steps = own.num_layers if num_steps is None else num_steps
    model = discrete_model(own, num_steps) if continuous else own
    architecture = of_model(model)
    with complete_or_nothing(output) as folder:
        run = run_directory.load(workdir, mesh)
        params = run.params
        if continuous:
            cut = jax.jit(lambda params: discrete_params(own, params, num_steps))
            params = on_mesh(mesh, cut)(params)
        if architecture is OWN:
            shutil.copyfile(CODE, folder / CODE.name)
        elif model.step_size != 1:
            model, params = fold_step(model, params)
        kept = workdir / run_directory.TOKENIZER
        ids = hf_tokenizer.write(run.tokenizer, kept, model.max_len, folder)
        config = {
            "architectures": [architecture.class_name],
            "model_type": architecture.model_type,
            "torch_dtype": dtype,
            **ids,
            **architecture.write_config(model),
        }
        tensors = to_tensors(architecture, model, params)
        hf_folder.write(folder, config, tensors, dtype)
        difference = _compare(folder, run, num_steps, mesh)
        if not difference <= TOLERANCES[dtype]:
            raise UserError(
                f"{output} was not kept: read again, its logits differ by"
                f" {difference:.1e} of the largest, where {TOLERANCES[dtype]:.0e} is"
                f" what {dtype} explains"
            )
    return Exported(architecture, num_steps, difference)


def fold_step(c: ModelConfig, params: dict) -> tuple[ModelConfig, dict]:
    """The same layer_table in steps of length 1, as transformers' models have them."""
    units = BLOCKS[c.block].units(c)
    weights = with_step_lengths(units, params["weights"], c.step_size)
    return dataclasses.replace(c, horizon=0.0), params | {"weights": weights}


def _compare(path: Path, run, num_steps: int, mesh: Mesh) -> float:
    """The largest difference of logits of run and folder, relative to the largest."""
    B, L = _TOKENS_COMPARED
    folder = hf_folder.HFFolder(path)
    model = import_run.model_of(folder)
    config = dataclasses.replace(run.config, model=model)
    there = state.shardings(config, mesh).params
    params = jax.device_put(import_run.params_of(folder, model), there)
    shape = (B, min(L, model.max_len))
    tokens_BL = np.random.default_rng(0).integers(0, model.vocab_size, shape)
    expected = _logits(run.config.at_depth(num_steps), run.params, tokens_BL, mesh)
    found = _logits(config, params, tokens_BL, mesh)
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def _logits(config: Config, params: dict, tokens_BL, mesh: Mesh) -> np.ndarray:
    """[B, L, V], computed in float32."""
    exact = dataclasses.replace(
        config.model.for_inference(),
        dtype="float32",
        attention_implementation="xla",
        document_masking=False,
    )
    apply = _program(exact, mesh)
    with jax.default_matmul_precision("highest"):
        return np.asarray(apply(params, tokens_BL))


@functools.lru_cache(maxsize=1)  # run and folder are the same model often enough
def _program(c: ModelConfig, mesh: Mesh):
    model = Transformer(c)
    return on_mesh(mesh, jax.jit(lambda p, x: model.apply({"params": p}, x)))
