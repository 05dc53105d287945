"""How a family of Hugging Face models lays out the parameters that we have."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from diffeq_former.config import ModelConfig
from diffeq_former.errors import UserError
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.training.state import parameter_shapes

Path = tuple[str, ...]  # of a parameter in our tree


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a parameter lies: under one key, or `by_layer` under one for each layer."""

    keys: tuple[str, ...]
    shape: tuple[int, ...]  # of the tensor under each key
    by_layer: bool = False
    transposed: bool = False  # a linear map [outputs, inputs]; ours have inputs first


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A family of models, as config.json and the keys of the tensors have it."""

    model_type: str
    class_name: str
    # (config, path and shape of a parameter of ours) -> where it lies
    place: Callable[[ModelConfig, Path, tuple[int, ...]], Place]
    # The model of a config.json; raises UserError for what ours has not.
    read_config: Callable[[Mapping], ModelConfig]
    write_config: Callable[[ModelConfig], dict]
    prefix: str = ""  # of most keys, which files of the bare model leave out
    ignored: str = r"(?!)"  # the pattern of keys that are no parameters
    may_repeat: tuple[str, str] = ("", "")  # the first key's tensor may be the second's


def to_tensors(a: Architecture, c: ModelConfig, params: dict) -> dict[str, np.ndarray]:
    """Their tensors by key, from our parameters."""
    flat, tensors = flatten_dict(params), {}
    for path, place in _places(a, c).items():
        array = np.asarray(flat[path])
        for key, part in zip(
            place.keys, array if place.by_layer else [array], strict=True
        ):
            tensors[key] = (
                part.reshape(place.shape[::-1]).T
                if place.transposed
                else part.reshape(place.shape)
            )
    return tensors


def to_params(
    a: Architecture,
    c: ModelConfig,
    keys: Iterable[str],
    read: Callable[[str], np.ndarray],
) -> dict:
    """Our parameters, float32, from the tensors that `read` gives for the keys.

    Raises:
      UserError: for a tensor that is missing, of another shape, or unknown.
    """
    names = {_in_full(a, key): key for key in keys}

    def take(key: str, place: Place) -> np.ndarray:
        if key not in names:
            raise UserError(f"the tensor {key} of a {a.model_type} is missing")
        tensor = read(names[key])
        if tensor.shape != place.shape:
            raise UserError(
                f"the tensor {key} has the shape {list(tensor.shape)}, where"
                f" config.json asks for {list(place.shape)}"
            )
        return tensor.T if place.transposed else tensor

    params, shapes = {}, flatten_dict(parameter_shapes(c))
    places = _places(a, c)
    for path, place in places.items():
        parts = [take(key, place) for key in place.keys]
        array = np.stack(parts) if place.by_layer else parts[0]
        params[path] = array.reshape(shapes[path].shape).astype(np.float32)
    known = {key for place in places.values() for key in place.keys}
    _check_rest(a, names, known, read)
    return unflatten_dict(params)


def by_layer(
    layer: str, units: Mapping[str, str], ends: Mapping[Path, str], outputs_first: bool
) -> Callable[[ModelConfig, Path, tuple[int, ...]], Place]:
    """`Architecture.place` of a family with tensors of their own for each layer.

    Args:
      layer: The beginning of the keys, with {} for the layer's number.
      units: Our unit -> its module in a layer.
      ends: The path of a parameter outside of the layers -> its key.
      outputs_first: Whether linear maps of the layers are [outputs, inputs].
    """

    def place(c: ModelConfig, path: Path, shape: tuple[int, ...]) -> Place:
        if path == ("head", "kernel"):
            return Place((ends[path],), shape[::-1], transposed=True)
        if path[0] != "weights":
            return Place((ends[path],), shape)
        _, unit, name = path
        weight = "weight" if name in ("kernel", "scale") else "bias"
        stem = f"{layer}.{units[unit]}.{weight}"
        keys = tuple(stem.format(i) for i in range(c.num_layers))
        if name != "kernel":
            return Place(keys, (math.prod(shape[1:]),), by_layer=True)
        linear = BLOCKS[c.block].units(c)[unit]
        ends_at = linear.num_inputs
        sizes = math.prod(linear.kernel[:ends_at]), math.prod(linear.kernel[ends_at:])
        if outputs_first:
            return Place(keys, sizes[::-1], by_layer=True, transposed=True)
        return Place(keys, sizes, by_layer=True)

    return place


def _places(a: Architecture, c: ModelConfig) -> dict[Path, Place]:
    shapes = flatten_dict(parameter_shapes(c))
    return {path: a.place(c, path, x.shape) for path, x in shapes.items()}


def _in_full(a: Architecture, key: str) -> str:
    whole = key.startswith(a.prefix) or key == a.may_repeat[0]
    return key if whole else a.prefix + key


def _check_rest(a: Architecture, names: Mapping, known: set, read: Callable) -> None:
    """Whether all other tensors say nothing of their own."""
    again, other = a.may_repeat
    for key in sorted(names.keys() - known):
        if re.fullmatch(a.ignored, key):
            continue
        if key != again:
            raise UserError(f"the tensor {key} is none of a {a.model_type}")
        if not np.array_equal(read(names[key]), read(names[other])):
            raise UserError(
                f"the tensors {again} and {other} differ, where config.json has one"
                f" for both; set tie_word_embeddings to false if this is a llama"
            )
