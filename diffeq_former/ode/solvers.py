"""Solvers for one step of dx/dt = f_1(x, t) + f_2(x, t) + ..., defined by coefficients.

The terms f_i are functions `term(node, x)`, where `node` is an index into the solver's
`nodes`: the distinct times, as fractions of a step, at which it evaluates the field.
States only need addition and multiplication by a number.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeVar

from diffeq_former.errors import UserError, require_extra

State = TypeVar("State")
Term = Callable[[int, State], State]


@dataclasses.dataclass(frozen=True)
class RungeKutta:
    """An explicit Runge-Kutta method by its Butcher tableau (c, A, b)."""

    order: int
    c: tuple[float, ...]
    a: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]

    @property
    def nodes(self) -> tuple[float, ...]:
        """The distinct stage times, as fractions of a step."""
        return tuple(dict.fromkeys(self.c))

    def step(self, terms: Sequence[Term], x: State, h: float) -> State:
        """Return the state after a step of length h, with the sum of all terms."""
        slopes = []
        for c, row in zip(self.c, self.a, strict=True):
            node, y = self.nodes.index(c), _advance(x, h, row, slopes)
            slopes.append(_sum(term(node, y) for term in terms))
        return _advance(x, h, self.b, slopes)


@dataclasses.dataclass(frozen=True)
class Splitting:
    """A splitting method: Euler substeps (term, fraction of the step) in sequence.

    `order` is the order of the splitting. The method attains it if Euler integrates
    each term exactly; otherwise the Euler substeps limit its order to 1.
    """

    order: int
    node: float
    substeps: tuple[tuple[int, float], ...]

    @property
    def nodes(self) -> tuple[float, ...]:
        """The single stage time, as a fraction of a step."""
        return (self.node,)

    def step(self, terms: Sequence[Term], x: State, h: float) -> State:
        """Return the state after a step of length h."""
        for index, fraction in self.substeps:
            x = x + (fraction * h) * terms[index](0, x)
        return x


Solver = RungeKutta | Splitting

# Euler and Lie-Trotter evaluate the weights at the right end of the step, as the code
# of the paper does. Term 0 of a splitting is attention, term 1 is feed-forward.
SOLVERS: dict[str, Solver] = {
    "euler": RungeKutta(1, c=(1.0,), a=((),), b=(1.0,)),
    "lie_trotter": Splitting(1, node=1.0, substeps=((0, 1.0), (1, 1.0))),
    "strang": Splitting(2, node=0.5, substeps=((1, 0.5), (0, 1.0), (1, 0.5))),
    "midpoint": RungeKutta(2, c=(0.0, 0.5), a=((), (0.5,)), b=(0.0, 1.0)),
    "heun": RungeKutta(2, c=(0.0, 1.0), a=((), (1.0,)), b=(0.5, 0.5)),
    "rk4": RungeKutta(
        4,
        c=(0.0, 0.5, 0.5, 1.0),
        a=((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)),
        b=(1 / 6, 1 / 3, 1 / 3, 1 / 6),
    ),
}

DIFFRAX = "diffrax:"


def get_solver(name: str) -> Solver:
    """Return the solver with this name.

    Args:
      name: A key of `SOLVERS`, or diffrax:NAME for an explicit Runge-Kutta method of
        diffrax (Kidger 2021, arXiv 2202.02435), such as diffrax:Tsit5.

    Raises:
      UserError: If there is none, or diffrax is not installed.
    """
    if not name.startswith(DIFFRAX):
        if name not in SOLVERS:
            raise UserError(
                f"solver={name}: expected one of {', '.join(SOLVERS)}, or a method of"
                f" diffrax, such as {DIFFRAX}Tsit5"
            )
        return SOLVERS[name]
    method = diffrax_method(name.removeprefix(DIFFRAX))
    tableau, order = method.tableau, method.order(None)
    stages = 1 + max(i for i, weight in enumerate(tableau.b_sol) if weight)
    return RungeKutta(
        order,
        c=tuple(map(float, (0.0, *tableau.c)))[:stages],
        a=((), *(tuple(map(float, row)) for row in tableau.a_lower))[:stages],
        b=tuple(map(float, tableau.b_sol))[:stages],
    )


def diffrax_method(name: str):
    """Return the explicit Runge-Kutta method of diffrax with this name.

    Raises:
      UserError: If there is none, or diffrax is not installed.
    """
    require_extra("ode", "diffrax", prefix=f"solver={DIFFRAX}{name}: ")
    import diffrax

    base = diffrax.AbstractERK
    known = {
        x.__name__: x
        for x in vars(diffrax).values()
        if isinstance(x, type) and issubclass(x, base) and x is not base
    }
    if name not in known:
        raise UserError(
            f"solver={DIFFRAX}{name}: diffrax has no explicit Runge-Kutta method of"
            f" this name; use one of {', '.join(sorted(known))}"
        )
    return known[name]()


def is_splitting(name: str) -> bool:
    """Return whether this is the name of a splitting method."""
    return isinstance(SOLVERS.get(name), Splitting)


def _advance(x: State, h: float, row: Sequence[float], slopes: Sequence[State]):
    for coefficient, slope in zip(row, slopes, strict=True):
        if coefficient:
            x = x + (coefficient * h) * slope
    return x


def _sum(values):
    total, *rest = values
    for value in rest:
        total = total + value
    return total
