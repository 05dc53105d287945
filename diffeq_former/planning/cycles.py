"""The time of a TPU program by named scope, as its compiler estimates it.

The compiler writes a number of cycles at the instructions of its programs. The unit is
not a clock cycle of the device, so only ratios and shares mean anything. Kernels that
are written by hand (splash attention) and collectives have no estimate.
"""

import re
from collections import Counter

from diffeq_former.planning.hlo import Program

# Scopes of the model and the training step (`jax.named_scope`), the innermost first.
SCOPES = ("tabulate", "attention", "feed_forward", "head", "loss", "optimizer")
OTHER = "other"

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


def cycles_by_scope(program: Program) -> dict[str, int]:
    """Return the estimated cycles of all executed instructions by named scope.

    Empty, if the program is not one for TPUs.
    """
    sums = Counter()
    for instruction, times, *_ in program.executed():
        if found := _CYCLES.search(instruction.text):
            sums[_scope(instruction.op_name)] += times * int(found[1])
    return {name: sums[name] for name in (*SCOPES, OTHER) if sums[name]}


def _scope(op_name: str) -> str:
    inside = [part for part in re.split(r"[/():]", op_name) if part in SCOPES]
    return inside[-1] if inside else OTHER
