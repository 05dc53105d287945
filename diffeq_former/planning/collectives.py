"""The communication of a compiled program, parsed from its text.

Bytes are those that one device sends with ring algorithms.
"""

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Mapping

import numpy as np

from diffeq_former.distributed.sharding_rules import MESH_AXES
from diffeq_former.planning.hlo import Instruction, Program

_ARRAY = re.compile(r"\b(pred|[a-z]+\d+)\w*\[([\d,]*)\]")
_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]+\})\}")
_TILED = re.compile(r"replica_groups=(\[[\d,]+\])<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_NAMED = re.compile(
    r"replica_groups=mesh\[([^\]]*)\]"
    r"(?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{([^}]*)\}"
)
_CHANNEL = re.compile(r"channel_id=(\d+)")

# Bytes sent by each kind, as a function of the whole array's bytes and the group size.
_SENT = {
    "all-reduce": lambda size, n: 2 * size * (n - 1) / n,
    "all-gather": lambda size, n: size * (n - 1) / n,
    "reduce-scatter": lambda size, n: size * (n - 1) / n,
    "all-to-all": lambda size, n: size * (n - 1) / n,
    "collective-permute": lambda size, n: size,
}
_COMPUTES = ("fusion", "custom-call", "while", "convolution", "dot", "call")
# A TPU's reduce-scatter is a fusion of this name around an all-reduce.
_FUSED_SCATTER = "all-reduce-scatter"


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective operation of a program."""

    kind: str  # such as all-gather
    axes: tuple[str, ...]  # mesh axes over which it communicates
    dtypes: str  # of the arrays, such as bf16
    num_bytes: float  # sent by one device in all executions
    overlapped: bool  # the device computes meanwhile
    op_name: str


def collectives(program: Program, sizes: Mapping[str, int]) -> list[Collective]:
    """Return the collectives of a program on a mesh of these sizes.

    Raises:
      ValueError: If the trip count of a loop is unknown.
    """
    found, parts = {}, Counter()
    for instruction, times, computation, following in program.executed():
        for fusion, inner in [("", instruction), *program.fused(instruction)]:
            kind = inner.kind.removesuffix("-start")
            if kind not in _SENT:
                continue
            # A TPU's asynchronous collective is a part of several fusions: those that
            # start and end it, and those that compute meanwhile. A reduce-scatter is
            # one fusion, and may share its channel with another.
            scatters = fusion.startswith(_FUSED_SCATTER)
            channel = _CHANNEL.search(inner.text)
            is_part = fusion and channel and not scatters
            key = (computation, channel[1] if is_part else inner.name)
            parts[key] += 1
            groups, size = _groups(inner.text), _num_bytes(_result(inner))
            if kind == "all-reduce":  # whose results may be rounded
                operands = program.operands(inner)
                size = max(size, sum(_num_bytes(x.shape) for x in operands))
            if kind == "reduce-scatter":
                size *= groups.shape[1]
            elif scatters:
                kind = "reduce-scatter"
            found[key] = Collective(
                kind=kind,
                axes=_axes(groups, sizes),
                dtypes="+".join(sorted({d for d, _ in _ARRAY.findall(inner.shape)})),
                num_bytes=times * _SENT[kind](size, groups.shape[1]),
                overlapped=parts[key] > 2 or _is_overlapped(inner, following),
                op_name=inner.op_name or instruction.op_name,
            )
    return list(found.values())


def sent_bytes(collectives: list[Collective], *names: str) -> dict:
    """Return the bytes sent, summed by these fields of the collectives."""
    sums = Counter()
    for collective in collectives:
        key = tuple(getattr(collective, name) for name in names)
        sums[key[0] if len(key) == 1 else key] += collective.num_bytes
    return {key: size for key, size in sums.items() if size}


def _result(instruction: Instruction) -> str:
    """Return the shape of the result.

    That of an asynchronous start is the second of its elements, after the operands; an
    all-reduce, whose operands are like its results, states no operands.
    """
    if instruction.kind.endswith("-start") and instruction.kind != "all-reduce-start":
        return _elements(instruction.shape)[1]
    return instruction.shape


def _elements(shape: str) -> list[str]:
    """Split the shape of a tuple, such as (f32[2], (f32[3], f32[4]))."""
    parts, depth = [""], 0
    for letter in shape[1:-1]:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _num_bytes(shape: str) -> float:
    return sum(
        _bits(dtype) / 8 * math.prod(int(n) for n in dims.split(",") if n)
        for dtype, dims in _ARRAY.findall(shape)
    )


def _bits(dtype: str) -> int:
    return 8 if dtype == "pred" else int(re.search(r"\d+", dtype)[0])


def _groups(text: str) -> np.ndarray:
    """Return the devices that communicate, a row for each group of them.

    Devices are numbers in the order of the mesh. Groups are listed, or are the rows of
    an array of all devices, or lie along some axes of a mesh.
    """
    if listed := _LISTED.search(text):
        groups = re.findall(r"\{([\d,]+)\}", listed[1])
        return np.array([_integers(group) for group in groups])
    if tiled := _TILED.search(text):
        return _arranged(*tiled.groups()[1:]).reshape(_integers(tiled[1]))
    named = _NAMED.search(text)
    sizes = {name: int(n) for name, n in re.findall(r"'(\w+)'=(\d+)", named[1])}
    order = (named[2], named[3]) if named[2] else (str(math.prod(sizes.values())), None)
    devices = _arranged(*order).reshape(*sizes.values())
    along = [list(sizes).index(name) for name in re.findall(r"'(\w+)'", named[4])]
    last = range(-len(along), 0)
    group_size = math.prod(devices.shape[axis] for axis in along)
    return np.moveaxis(devices, along, last).reshape(-1, group_size)


def _arranged(shape: str, axes: str | None) -> np.ndarray:
    """Return the numbers from 0 on as an array of a shape, its axes transposed."""
    devices = np.arange(math.prod(_integers(shape))).reshape(_integers(shape))
    return devices.transpose(_integers(axes)) if axes else devices


def _integers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


def _axes(groups: np.ndarray, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the mesh axes along which the devices of the groups differ."""
    positions = np.unravel_index(groups, tuple(sizes[axis] for axis in MESH_AXES))
    return tuple(
        axis
        for axis, of_groups in zip(MESH_AXES, positions, strict=True)
        if (of_groups != of_groups[:, :1]).any()
    )


def _is_overlapped(start: Instruction, following: list[Instruction]) -> bool:
    """Whether the device computes between the start of a collective and its end."""
    if not start.kind.endswith("-start"):
        return False
    uses_start = re.compile(rf"%{re.escape(start.name)}[,)]")
    for instruction in following:
        if instruction.kind in _COMPUTES:
            return True
        if instruction.kind.endswith("-done") and uses_start.search(instruction.text):
            return False
    return False
