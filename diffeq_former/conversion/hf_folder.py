"""Reading and writing of Hugging Face model folders: config.json and safetensors."""

import contextlib
import json
import math
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from diffeq_former.errors import UserError, require_finite
from diffeq_former.json_io import read_object

CONFIG, WEIGHTS, INDEX = (
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
)
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}
SHARD_BYTES = 5 * 10**9  # maximum size of a file
_READABLE = ("F32", "F16", "BF16")


class HFFolder:
    """A model folder that is read; no code in it is run and nothing is unpickled.

    Raises:
      UserError: If it is not a model folder, or a file is missing or damaged.
    """

    def __init__(self, path: Path):
        self.path = path
        if not (path / CONFIG).is_file():
            raise UserError(f"{path} is not a Hugging Face model: it has no {CONFIG}")
        self.config = read_object(path / CONFIG)
        self._files = self._find_tensors()

    @property
    def keys(self) -> list[str]:
        return list(self._files)

    def read(self, key: str) -> np.ndarray:
        """Return a tensor, converted to float32."""
        path = self._files[key]
        with _opened(path) as file:
            if (dtype := file.get_slice(key).get_dtype()) not in _READABLE:
                raise UserError(
                    f"{path}: {key} is {dtype}; only float32, float16 and bfloat16 are"
                    " read"
                )
            array = file.get_tensor(key).astype(np.float32, copy=False)
            require_finite(path, key, array)
            return array

    def _find_tensors(self) -> dict[str, Path]:
        """Return the file of each key."""
        if (path := self.path / WEIGHTS).is_file():
            return dict.fromkeys(_keys_of(path), path)
        if not (path := self.path / INDEX).is_file():
            pickles = sorted(self.path.glob("*.bin"))
            hint = (
                f" ({pickles[0].name} is a pickle, which is not read)"
                if pickles
                else ""
            )
            raise UserError(
                f"{self.path} has neither {WEIGHTS} nor {INDEX}{hint}: save the model"
                " with transformers' save_pretrained"
            )
        shards = read_object(path).get("weight_map")
        names = shards.values() if isinstance(shards, dict) else [None]
        if not all(isinstance(name, str) for name in names):
            raise UserError(f"{path} is damaged: it has no weight_map")
        found = {}
        for name in sorted(set(shards.values())):
            shard = self.path / name
            if not shard.is_file():
                raise UserError(f"{shard} is missing, but {INDEX} refers to it")
            found |= dict.fromkeys(_keys_of(shard), shard)
        for key, name in shards.items():
            if found.get(key) != self.path / name:
                raise UserError(f"{path}: {key} is not in {name}")
        return found


def write(
    folder: Path,
    config: dict,
    tensors: Mapping[str, np.ndarray],
    dtype: str,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write config.json and the tensors, in files of at most `shard_bytes`.

    A larger tensor gets a file of its own.
    """
    item = np.dtype(DTYPES[dtype]).itemsize
    sizes = {key: math.prod(tensor.shape) * item for key, tensor in tensors.items()}
    shards, weight_map = _shards(sizes, shard_bytes), {}
    for number, keys in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        name = WEIGHTS if len(shards) == 1 else name
        arrays = {
            key: np.ascontiguousarray(tensors[key], DTYPES[dtype]) for key in keys
        }
        save_file(arrays, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(keys, name)
    if len(shards) > 1:
        total = {"total_size": sum(sizes.values())}
        write_json(folder / INDEX, {"metadata": total, "weight_map": weight_map})
    write_json(folder / CONFIG, config)


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _shards(sizes: Mapping[str, int], most: int) -> list[list[str]]:
    """Split the keys, in order, into shards of at most `most` bytes."""
    shards, filled = [], math.inf
    for key, size in sizes.items():
        if filled + size > most:
            shards.append([])
            filled = 0
        shards[-1].append(key)
        filled += size
    return shards


def _keys_of(path: Path) -> list[str]:
    with _opened(path) as file:
        return list(file.keys())


@contextlib.contextmanager
def _opened(path: Path):
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged: {error}") from error
