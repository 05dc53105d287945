"""Adapters alone, in the format of PEFT, for the Hugging Face twin of their base.

A folder has adapter_model.safetensors and adapter_config.json. PEFT knows A as a matrix
[r, inputs] and B as [outputs, r]; a step's length, which its models do not have, goes
into the B of what writes to the residual stream. A fingerprint of the base lies in the
metadata of the arrays.
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
from diffeq_former.errors import UserError
from diffeq_former.finetuning.peft import (
    SETTINGS,
    TWINS,
    adapted,
    check_twin,
    read_settings,
    settings,
)
from diffeq_former.models.lora import NAMES

ARRAYS = "adapter_model.safetensors"
FINGERPRINT = "base_sha256"


def save(folder: Path, config: Config, params: dict) -> None:
    """Writes a run's adapter into a folder.

    Raises:
      UserError: if the run has none, trained more than that, or its base has no twin.
    """
    c = config.model
    if not c.lora_rank:
        raise UserError("this run has no adapter (its model.lora_rank is 0)")
    if config.finetune.train_embeddings:
        raise UserError(
            "this run trained its embeddings too, which an adapter does not hold: merge"
            " it with tools/convert.py merge_lora"
        )
    check_twin(c)
    arrays = dict(_matrices(c, params["weights"]))
    metadata = {"format": "pt", FINGERPRINT: fingerprint(params)}
    save_file(arrays, folder / ARRAYS, metadata)
    text = json.dumps(settings(c), indent=1) + "\n"
    (folder / SETTINGS).write_text(text, encoding="utf-8")


def load(folder: Path, c: ModelConfig, params: dict) -> tuple[ModelConfig, dict]:
    """An adapter for a model: the model with it, and the adapter's parameters.

    Args:
      folder: What `save` wrote.
      c: The base's model.
      params: The base's parameters.

    Raises:
      UserError: if it cannot be read, is no LoRA, or was made for another base.
    """
    check_twin(c)
    model = read_settings(folder, c)
    arrays, made_for = _read_arrays(folder)
    wanted = {name: m.shape for name, m in _matrices(model, _zeros(model))}
    found = {name: m.shape for name, m in arrays.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise UserError(
                f"{folder / ARRAYS} is for another base: {name} is"
                f" {_said(found.get(name))}, expected {_said(wanted.get(name))}"
            )
    if made_for not in (None, fingerprint(params)):
        raise UserError(
            f"{folder / ARRAYS} is for another base: the weights that it was trained on"
            " are not those of this run's latest checkpoint"
        )
    return model, {"weights": dict(_adapters(model, arrays))}


def fingerprint(params: dict) -> str:
    """Of the frozen parameters' float32 bytes, by name."""
    digest = hashlib.sha256()
    for path, x in jax.tree.leaves_with_path(params):
        if path[-1].key not in NAMES:
            digest.update(jax.tree_util.keystr(path).encode())
            digest.update(np.asarray(x, np.float32).tobytes())
    return digest.hexdigest()


def _matrices(c: ModelConfig, weights: dict) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of PEFT, by their names."""
    layers, _ = TWINS[c.block]
    for name, module, unit, length in adapted(c):
        a, b = (np.asarray(weights[name][key], np.float32) for key in NAMES)
        for layer in range(c.num_layers):
            path = f"base_model.model.{layers}.{layer}.{module}"
            a_RI = a[layer].reshape(math.prod(unit.input_shape), -1).T
            b_OR = length * b[layer].reshape(c.lora_rank, -1).T
            yield f"{path}.lora_A.weight", np.ascontiguousarray(a_RI)
            yield f"{path}.lora_B.weight", np.ascontiguousarray(b_OR, np.float32)


def _adapters(c: ModelConfig, arrays: dict) -> Iterator[tuple[str, dict]]:
    """What `_matrices` was made of."""
    layers, _ = TWINS[c.block]
    for name, module, unit, length in adapted(c):
        paths = [f"base_model.model.{layers}.{n}.{module}" for n in range(c.num_layers)]
        a = np.stack([arrays[f"{path}.lora_A.weight"].T for path in paths])
        b = np.stack([arrays[f"{path}.lora_B.weight"].T for path in paths]) / length
        shapes = (*unit.input_shape, c.lora_rank), (c.lora_rank, *unit.bias_shape)
        yield (
            name,
            {
                key: np.asarray(x, np.float32).reshape(c.num_layers, *shape)
                for key, x, shape in zip(NAMES, (a, b), shapes, strict=True)
            },
        )


def _zeros(c: ModelConfig) -> dict:
    """Adapters of the right shapes."""
    shapes = {}
    for name, _, unit, _ in adapted(c):
        a = np.zeros((c.num_layers, *unit.input_shape, c.lora_rank), np.float32)
        b = np.zeros((c.num_layers, c.lora_rank, *unit.bias_shape), np.float32)
        shapes[name] = dict(zip(NAMES, (a, b), strict=True))
    return shapes


def _read_arrays(folder: Path) -> tuple[dict[str, np.ndarray], str | None]:
    path = folder / ARRAYS
    try:
        with safe_open(path, "numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}
            return arrays, (file.metadata() or {}).get(FINGERPRINT)
    except (OSError, TypeError, SafetensorError) as error:
        raise UserError(f"{path} is missing or damaged: {error}") from error


def _said(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else str(list(shape))
