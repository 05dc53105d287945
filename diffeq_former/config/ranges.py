"""Types of numeric settings with their ranges, as annotations of the schema's fields.

Numbers are compared as the float32 values that the model computes with: 1e-50 is 0.
"""

import operator
from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np

from diffeq_former.errors import UserError

MAX_SOLVER_STEPS = 10_000


def check_solver_steps(num_steps: int) -> None:
    """Raise UserError if a number of solver steps is out of range."""
    if not 1 <= num_steps <= MAX_SOLVER_STEPS:
        raise UserError(f"num_steps={num_steps}: expected 1 to {MAX_SOLVER_STEPS}")


def is_finite(value: float) -> bool:
    """Return whether a number is finite in float32."""
    return abs(value) <= float(np.finfo(np.float32).max)


class Bound(NamedTuple):
    """A condition on a number."""

    holds: Callable[[float, float], bool]  # of a value and the limit
    limit: float
    text: str  # the condition in words

    def __call__(self, value: float) -> bool:
        if isinstance(value, float):
            value = np.float32(value)
        return bool(self.holds(value, self.limit))


def at_least(limit: float) -> Bound:
    return Bound(operator.ge, limit, f"{limit} or more")


def above(limit: float) -> Bound:
    return Bound(operator.gt, limit, f"above {limit}")


def at_most(limit: float) -> Bound:
    return Bound(operator.le, limit, f"at most {limit}")


def below(limit: float) -> Bound:
    return Bound(operator.lt, limit, f"below {limit}")


Count = Annotated[int, at_least(1), below(2**31)]
NumSteps = Annotated[int, at_least(1), at_most(MAX_SOLVER_STEPS)]
CountOrZero = Annotated[int, at_least(0), below(2**31)]
CountOrDefault = Annotated[int, at_least(-1), below(2**31)]  # -1: the default
Positive = Annotated[float, above(0)]
NonNegative = Annotated[float, at_least(0)]
Fraction = Annotated[float, at_least(0), at_most(1)]
PositiveFraction = Annotated[float, above(0), at_most(1)]
Rate = Annotated[float, at_least(0), below(1)]  # such as dropout, or decay of moments
Factor = Annotated[float, at_least(1)]
Seconds = Annotated[float, above(0), below(2**31)]
Seed = Annotated[int, at_least(0), below(2**32)]
TokenId = Annotated[int, at_least(-1), below(2**31)]  # -1: none
AxisSize = Annotated[int, at_least(-1), below(2**31)]  # -1: all remaining devices
