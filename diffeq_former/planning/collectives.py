"""The communication volume of a compiled program, parsed from its HLO text.

A program consists of computations, which consist of instructions; a while loop names
its body and its trip count. Bytes are those that one device sends with ring algorithms.
"""

import math
import re
from collections import Counter, defaultdict

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%[\w.\-]+ = (.+?) ([\w\-]+)\(")
_CALLED = re.compile(r"(?:body|to_apply|calls|branch_computations=\{)=?%([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_ARRAY = re.compile(r"\b(pred|[a-z]+\d+)\w*\[([\d,]*)\]")
_LISTED = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_TILED = re.compile(r"replica_groups=\[\d+,(\d+)\]<=")
_NAMED = re.compile(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}")

# Bytes sent by each kind, as a function of the result's bytes and the group size.
_SENT = {
    "all-reduce": lambda size, n: 2 * size * (n - 1) / n,
    "all-gather": lambda size, n: size * (n - 1) / n,
    "reduce-scatter": lambda size, n: size * (n - 1),
    "all-to-all": lambda size, n: size * (n - 1) / n,
    "collective-permute": lambda size, n: size,
}


def sent_bytes(program: str) -> dict[str, float]:
    """Return the bytes that each device sends per execution, by kind of collective.

    Args:
      program: `jax.jit(f).lower(...).compile().as_text()`, compiled for CPU devices.

    Raises:
      ValueError: If the trip count of a loop is unknown.
    """
    own, calls, entry = defaultdict(Counter), defaultdict(list), None
    for line in program.splitlines():
        if start := _COMPUTATION.match(line):
            name = start[2]
            entry = name if start[1] else entry
        elif instruction := _INSTRUCTION.match(line):
            shape, kind = instruction.groups()
            if kind in _SENT:
                own[name][kind] += _SENT[kind](_num_bytes(shape), _group_size(line))
            times = _trip_count(line) if kind == "while" else 1
            calls[name] += [(called, times) for called in _CALLED.findall(line)]

    def total(name: str) -> Counter:
        sums = Counter(own[name])
        for called, times in calls[name]:
            for kind, size in total(called).items():
                sums[kind] += times * size
        return sums

    return dict(total(entry))


def _num_bytes(shape: str) -> float:
    return sum(
        _bits(dtype) / 8 * math.prod(int(n) for n in dims.split(",") if n)
        for dtype, dims in _ARRAY.findall(shape)
    )


def _bits(dtype: str) -> int:
    return 8 if dtype == "pred" else int(re.search(r"\d+", dtype)[0])


def _group_size(line: str) -> int:
    if listed := _LISTED.search(line):
        return len(listed[1].split(","))
    if tiled := _TILED.search(line):
        return int(tiled[1])
    if named := _NAMED.search(line):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", named[2]))
    return 2  # a collective-permute, whose bytes do not depend on the group size


def _trip_count(line: str) -> int:
    if count := _TRIPS.search(line):
        return int(count[1])
    raise ValueError(f"a while loop without a known trip count: {line.strip()[:200]}")
