"""Mapping between our parameters and the tensors of a family of Hugging Face models."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from diffeq_former.config import ModelConfig
from diffeq_former.errors import UserError
from diffeq_former.models.blocks import linear_specs
from diffeq_former.training.state import parameter_shapes

Path = tuple[str, ...]  # path of a parameter in our tree


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """The tensors that hold a parameter: one, or one per layer if `by_layer`."""

    keys: tuple[str, ...]
    shape: tuple[int, ...]  # shape of the tensor under each key
    by_layer: bool = False
    transposed: bool = False  # stored as [outputs, inputs]; ours have inputs first


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A family of Hugging Face models: its config.json and its tensors."""

    model_type: str
    class_name: str
    # (config, path and shape of a parameter of ours) -> the tensors that hold it
    tensor_spec: Callable[[ModelConfig, Path, tuple[int, ...]], TensorSpec]
    # config.json -> our config; raises UserError for unsupported models.
    read_config: Callable[[Mapping], ModelConfig]
    write_config: Callable[[ModelConfig], dict]
    prefix: str = ""  # prefix of most keys, absent in files of the bare model
    ignored: str = r"(?!)"  # pattern of keys that are not parameters
    # (config, weights of the layers) -> the same model's, as the family expects them.
    to_theirs: Callable[[ModelConfig, dict], dict] = lambda _, weights: weights
    # Back, for one parameter at a time: (config, path, array as the family expects it).
    to_ours: Callable[[ModelConfig, Path, np.ndarray], np.ndarray] = (
        lambda _c, _path, array: array
    )
    may_repeat: tuple[str, str] = (
        "",
        "",
    )  # the first key may hold a copy of the second


def to_tensors(a: Architecture, c: ModelConfig, params: dict) -> dict[str, np.ndarray]:
    """Return the Hugging Face tensors by key, from our parameters."""
    weights = jax.tree.map(np.asarray, params["weights"])
    params = params | {"weights": a.to_theirs(c, weights)}
    flat, tensors = flatten_dict(params), {}
    for path, spec in _tensor_specs(a, c).items():
        array = np.asarray(flat[path])
        for key, part in zip(
            spec.keys, array if spec.by_layer else [array], strict=True
        ):
            tensors[key] = (
                part.reshape(spec.shape[::-1]).T
                if spec.transposed
                else part.reshape(spec.shape)
            )
    return tensors


def to_params(
    a: Architecture,
    c: ModelConfig,
    keys: Iterable[str],
    read: Callable[[str], np.ndarray],
    place: Callable[[Path, np.ndarray], jax.Array] = lambda _, array: array,
) -> dict:
    """Return our parameters, float32, from Hugging Face tensors.

    One parameter at a time is read and placed, so that host memory holds no other.

    Args:
      a: The family of the model.
      c: The config of the model.
      keys: The keys of all tensors.
      read: Returns the tensor of a key.
      place: Moves a parameter to the devices; by default it stays on the host.

    Raises:
      UserError: If a tensor is missing, has the wrong shape, or is unknown.
    """
    names = {_full_key(a, key): key for key in keys}

    def take(key: str, spec: TensorSpec) -> np.ndarray:
        if key not in names:
            raise UserError(f"the tensor {key} of a {a.model_type} is missing")
        tensor = read(names[key])
        if tensor.shape != spec.shape:
            raise UserError(
                f"the tensor {key} has the shape {list(tensor.shape)}, but config.json"
                f" requires {list(spec.shape)}"
            )
        return tensor.T if spec.transposed else tensor

    def assemble(spec: TensorSpec, shape: tuple[int, ...]) -> np.ndarray:
        stored = spec.shape[::-1] if spec.transposed else spec.shape
        array = np.empty((len(spec.keys), *stored), np.float32)
        for key, part in zip(spec.keys, array, strict=True):
            part[...] = take(key, spec)
        return array.reshape(shape)

    params, shapes = {}, flatten_dict(parameter_shapes(c))
    specs = _tensor_specs(a, c)
    for path, spec in specs.items():
        array = a.to_ours(c, path, assemble(spec, shapes[path].shape))
        params[path] = place(path, array)
    known = {key for spec in specs.values() for key in spec.keys}
    _check_unused(a, names, known, read)
    return unflatten_dict(params)


def by_layer(
    layer: str,
    modules: Mapping[str, str],
    outer: Mapping[Path, str],
    outputs_first: bool,
) -> Callable[[ModelConfig, Path, tuple[int, ...]], TensorSpec]:
    """Return `Architecture.tensor_spec` for a family that stores layers separately.

    Args:
      layer: Prefix of the keys of a layer, with {} for its index.
      modules: Our names of linear layers and norms -> modules within a layer.
      outer: Paths of the parameters outside of the layers -> keys.
      outputs_first: Whether the layers' linear maps are stored as [outputs, inputs].
    """

    def tensor_spec(c: ModelConfig, path: Path, shape: tuple[int, ...]) -> TensorSpec:
        if path == ("head", "kernel"):
            return TensorSpec((outer[path],), shape[::-1], transposed=True)
        if path[0] != "weights":
            return TensorSpec((outer[path],), shape)
        _, weight_name, name = path
        weight = "weight" if name in ("kernel", "scale") else "bias"
        stem = f"{layer}.{modules[weight_name]}.{weight}"
        keys = tuple(stem.format(i) for i in range(c.num_layers))
        if name != "kernel":
            return TensorSpec(keys, (math.prod(shape[1:]),), by_layer=True)
        linear = linear_specs(c)[weight_name]
        ends_at = linear.num_inputs
        sizes = math.prod(linear.kernel[:ends_at]), math.prod(linear.kernel[ends_at:])
        if outputs_first:
            return TensorSpec(keys, sizes[::-1], by_layer=True, transposed=True)
        return TensorSpec(keys, sizes, by_layer=True)

    return tensor_spec


def _tensor_specs(a: Architecture, c: ModelConfig) -> dict[Path, TensorSpec]:
    shapes = flatten_dict(parameter_shapes(c))
    return {path: a.tensor_spec(c, path, x.shape) for path, x in shapes.items()}


def _full_key(a: Architecture, key: str) -> str:
    """Add the prefix that files of the bare model leave out."""
    complete = key.startswith(a.prefix) or key == a.may_repeat[0]
    return key if complete else a.prefix + key


def _check_unused(a: Architecture, names: Mapping, known: set, read: Callable) -> None:
    """Check that the tensors that were not used are ignorable or copies of others."""
    copy, original = a.may_repeat
    for key in sorted(names.keys() - known):
        if re.fullmatch(a.ignored, key):
            continue
        if key != copy:
            raise UserError(f"the tensor {key} does not belong to a {a.model_type}")
        if not np.array_equal(read(names[key]), read(names[original])):
            raise UserError(
                f"the tensors {copy} and {original} differ, but config.json ties them;"
                " set tie_word_embeddings to false if this is a llama"
            )
