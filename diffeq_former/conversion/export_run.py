"""Export of a run to a Hugging Face folder, verified by reading it back.
B batch, L length, V vocabulary.
"""

import dataclasses
import functools
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from diffeq_former.atomic_io import atomic_directory
from diffeq_former.config import Config, ModelConfig
from diffeq_former.conversion import hf_folder, hf_tokenizer, import_run, model_card
from diffeq_former.conversion.architecture import Architecture, to_tensors
from diffeq_former.conversion.architectures import of_model
from diffeq_former.conversion.diffeq_former_hf import CODE, OWN
from diffeq_former.distributed.mesh import on_mesh
from diffeq_former.errors import UserError
from diffeq_former.finetuning.discretise import discrete_model, discrete_params
from diffeq_former.finetuning.merge import check_is_merged
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.transformer import Transformer
from diffeq_former.models.weight_specs import with_step_lengths
from diffeq_former.training import run_directory
from diffeq_former.training.run_directory import LoadedRun

# Maximum difference of the logits from the run's, relative to the largest logit. In
# float32 it is due to rounding in the computation, in bfloat16 to that of the weights.
TOLERANCES = {"float32": 1e-4, "bfloat16": 5e-2}
_TOKENS_COMPARED = (2, 64)


class Exported(NamedTuple):
    """Summary of an export."""

    architecture: Architecture
    num_layers: int
    difference: float  # largest difference of the logits, relative to the largest logit


def export_run(
    run: LoadedRun,
    output: Path,
    dtype: str = "float32",
    *,
    license: str | None = None,
) -> Exported:
    """Write a trained run as a folder that `transformers` loads, with a model card.

    Args:
      run: The run; a continuous model is discretised into its number of solver steps.
      output: The new folder, which must not exist; written atomically.
      dtype: Type of the tensors, float32 or bfloat16.
      license: The license that the card names, an identifier of the hub such as
        apache-2.0; None: the card names none.

    Raises:
      UserError: If the type or the license is not one, the model cannot be discretised
        or has adapters, or if the exported model, read back, does not compute the
        logits of the run; the folder is then removed.
    """
    _check(run, dtype, license)
    source, mesh = run.config.model, run.mesh
    model = discrete_model(source, source.num_layers)
    architecture, params = of_model(model), run.params
    with atomic_directory(output) as folder:
        if model is not source:
            discretise = jax.jit(
                lambda p: discrete_params(source, p, source.num_layers)
            )
            params = on_mesh(mesh, discretise)(params)
        if architecture is OWN:
            shutil.copyfile(CODE, folder / CODE.name)
        elif model.step_size != 1:
            model, params = fold_step(model, params)
        tokenizer_folder = run.path / run_directory.TOKENIZER
        ids = hf_tokenizer.write(run.tokenizer, tokenizer_folder, model.max_len, folder)
        config = {
            "architectures": [architecture.class_name],
            "model_type": architecture.model_type,
            "torch_dtype": dtype,
            **architecture.write_config(model),
            **ids,
        }
        tensors = to_tensors(architecture, model, params)
        hf_folder.write(folder, config, tensors, dtype)
        difference = _compare(folder, run, mesh)
        if not difference <= TOLERANCES[dtype]:
            raise UserError(
                f"{output} was discarded: read back, its logits differ from the run's"
                f" by {difference:.1e} of the largest, more than the"
                f" {TOLERANCES[dtype]:.0e} that rounding to {dtype} explains"
            )
        card = model_card.render(run, architecture, output.name, license)
        (folder / model_card.NAME).write_text(card, encoding="utf-8")
    return Exported(architecture, source.num_layers, difference)


def _check(run: LoadedRun, dtype: str, license: str | None) -> None:
    if dtype not in TOLERANCES:
        raise UserError(f"dtype={dtype}: expected one of {', '.join(TOLERANCES)}")
    if license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.\-]*", license):
        raise UserError(
            f"license={license}: expected an identifier of the hub, such as apache-2.0"
        )
    if not (run.path / run_directory.TOKENIZER).is_dir():
        raise UserError(
            f"{run.path} is a Hugging Face model, not a run: import it first"
            f" (tools/import_hf.py --model={run.path} --output=...)"
        )
    check_is_merged(run.config.model, run.path)


def fold_step(c: ModelConfig, params: dict) -> tuple[ModelConfig, dict]:
    """Return the same layer_table with step size 1, as transformers requires."""
    specs = BLOCKS[c.block].weight_specs(c)
    weights = with_step_lengths(specs, params["weights"], c.step_size)
    c = dataclasses.replace(c, horizon=float(c.num_layers))
    return c, params | {"weights": weights}


def _compare(path: Path, run: LoadedRun, mesh: Mesh) -> float:
    """Return the largest difference of the logits of folder and run on random tokens.

    It is relative to the run's largest logit.
    """
    B, L = _TOKENS_COMPARED
    folder = hf_folder.HFFolder(path)
    model = import_run.model_of(folder)
    config = dataclasses.replace(run.config, model=model)
    params = import_run.sharded_params_of(folder, config, mesh)
    shape = (B, min(L, model.max_len))
    tokens_BL = np.random.default_rng(0).integers(0, model.vocab_size, shape)
    expected = _logits(run.config, run.params, tokens_BL, mesh)
    found = _logits(config, params, tokens_BL, mesh)
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def _logits(config: Config, params: dict, tokens_BL, mesh: Mesh) -> np.ndarray:
    """Compute logits [B, L, V] in float32."""
    exact = dataclasses.replace(
        config.model.for_inference(),
        dtype="float32",
        attention_implementation="xla",
        document_masking=False,
    )
    apply = _compile(exact, mesh)
    with jax.default_matmul_precision("highest"):
        return np.asarray(apply(params, tokens_BL))


@functools.lru_cache(maxsize=1)  # run and folder often have the same model config
def _compile(c: ModelConfig, mesh: Mesh):
    model = Transformer(c)
    return on_mesh(mesh, jax.jit(lambda p, x: model.apply({"params": p}, x)))
