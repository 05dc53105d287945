"""LoRA adapters in PEFT's format, for the Hugging Face equivalent of their base model.

An adapter folder has adapter_model.safetensors and adapter_config.json. PEFT stores A
as a matrix [r, inputs] and B as [outputs, r]. Hugging Face models have no step size, so
it is multiplied into B of the layers that write to the residual stream. The metadata of
the arrays has a fingerprint of the base model.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from diffeq_former.config import Config, ModelConfig
from diffeq_former.errors import UserError, require_finite
from diffeq_former.finetuning.peft import (
    HF_MODULES,
    SETTINGS,
    adapted_layers,
    check_has_hf_equivalent,
    read_settings,
    settings,
)
from diffeq_former.models.lora import NAMES

ARRAYS = "adapter_model.safetensors"
FINGERPRINT = "base_sha256"


def save(folder: Path, config: Config, params: dict) -> None:
    """Write the adapter of a run to a folder.

    Raises:
      UserError: If the run has no adapter, trained its embeddings as well, or its base
        model has no Hugging Face equivalent.
    """
    c = config.model
    if not c.lora_rank:
        raise UserError("this run has no adapter (its model.lora_rank is 0)")
    if config.finetune.train_embeddings:
        raise UserError(
            "this run trained its embeddings too, which an adapter does not contain:"
            " merge it with tools/convert.py merge_lora"
        )
    check_has_hf_equivalent(c)
    arrays = dict(_matrices(c, params["weights"]))
    metadata = {"format": "pt", FINGERPRINT: fingerprint(params)}
    save_file(arrays, folder / ARRAYS, metadata)
    text = json.dumps(settings(c), indent=1) + "\n"
    (folder / SETTINGS).write_text(text, encoding="utf-8")


def load(folder: Path, c: ModelConfig, params: dict) -> tuple[ModelConfig, dict]:
    """Read an adapter for a base model.

    Args:
      folder: A folder in the format of `save`.
      c: Config of the base model.
      params: Parameters of the base model.

    Returns:
      The config of the model with the adapter, and the adapter's parameters.

    Raises:
      UserError: If the adapter cannot be read, is not plain LoRA, or was made for
        another base model.
    """
    check_has_hf_equivalent(c)
    model = read_settings(folder, c)
    arrays, made_for = _read_arrays(folder)
    expected = {name: m.shape for name, m in _matrices(model, _zeros(model))}
    found = {name: m.shape for name, m in arrays.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise UserError(
                f"{folder / ARRAYS} is for another base: {name} is"
                f" {_shape_text(found.get(name))}, expected"
                f" {_shape_text(expected.get(name))}"
            )
    if made_for not in (None, fingerprint(params)):
        raise UserError(
            f"{folder / ARRAYS} is for another base: the weights that it was trained on"
            " are not those of this run's latest checkpoint"
        )
    return model, {"weights": dict(_adapters(model, arrays))}


def fingerprint(params: dict) -> str:
    """Return the SHA-256 of names and float32 values of all parameters but adapters."""
    digest = hashlib.sha256()
    for path, x in jax.tree.leaves_with_path(params):
        if path[-1].key not in NAMES:
            digest.update(jax.tree_util.keystr(path).encode())
            digest.update(np.asarray(x, np.float32).tobytes())
    return digest.hexdigest()


def _matrices(c: ModelConfig, weights: dict) -> Iterator[tuple[str, np.ndarray]]:
    """Yield PEFT's arrays with their names."""
    layers, _ = HF_MODULES[c.block]
    for name, module, linear, factor in adapted_layers(c):
        a, b = (np.asarray(weights[name][key], np.float32) for key in NAMES)
        for layer in range(c.num_layers):
            path = f"base_model.model.{layers}.{layer}.{module}"
            a_RI = a[layer].reshape(math.prod(linear.input_shape), -1).T
            b_OR = factor * b[layer].reshape(c.lora_rank, -1).T
            yield f"{path}.lora_A.weight", np.ascontiguousarray(a_RI)
            yield f"{path}.lora_B.weight", np.ascontiguousarray(b_OR, np.float32)


def _adapters(c: ModelConfig, arrays: dict) -> Iterator[tuple[str, dict]]:
    """Yield our adapter parameters from PEFT's arrays; the inverse of `_matrices`."""
    layers, _ = HF_MODULES[c.block]
    for name, module, linear, factor in adapted_layers(c):
        paths = [f"base_model.model.{layers}.{n}.{module}" for n in range(c.num_layers)]
        a = np.stack([arrays[f"{path}.lora_A.weight"].T for path in paths])
        b = np.stack([arrays[f"{path}.lora_B.weight"].T for path in paths]) / factor
        shapes = (*linear.input_shape, c.lora_rank), (c.lora_rank, *linear.bias_shape)
        yield (
            name,
            {
                key: np.asarray(x, np.float32).reshape(c.num_layers, *shape)
                for key, x, shape in zip(NAMES, (a, b), shapes, strict=True)
            },
        )


def _zeros(c: ModelConfig) -> dict:
    """Return the model's adapter parameters filled with zeros."""
    zeros = {}
    for name, _, linear, _ in adapted_layers(c):
        a = np.zeros((c.num_layers, *linear.input_shape, c.lora_rank), np.float32)
        b = np.zeros((c.num_layers, c.lora_rank, *linear.bias_shape), np.float32)
        zeros[name] = dict(zip(NAMES, (a, b), strict=True))
    return zeros


def _read_arrays(folder: Path) -> tuple[dict[str, np.ndarray], str | None]:
    """Return the arrays of a folder, and the fingerprint of their base if present."""
    path = folder / ARRAYS
    try:
        with safe_open(path, "numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}
            fingerprint = (file.metadata() or {}).get(FINGERPRINT)
    except (OSError, TypeError, SafetensorError) as error:
        raise UserError(f"{path} is missing or damaged: {error}") from error
    for name, array in arrays.items():
        require_finite(path, name, array)
    return arrays, fingerprint


def _shape_text(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else str(list(shape))
