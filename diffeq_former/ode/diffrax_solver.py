"""Integration by the explicit Runge-Kutta methods of diffrax, also with adaptive steps.

Kidger 2021 (arXiv:2202.02435), https://docs.kidger.site/diffrax. Requires the extra
`ode`.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from diffeq_former.errors import UserError

_PREFIX = "diffrax:"
_MAX_STEPS = 4096  # attempted, of adaptive solvers


@dataclasses.dataclass(frozen=True)
class DiffraxSolver:
    """A method with its steps.

    Attributes:
      name: The class of the method in diffrax, such as Tsit5.
      num_steps: The number of steps of equal length; if steps are adaptive, the first
        that is tried has this length.
      rtol: Tolerance of the error of a step, relative to 1 + |x|; 0: steps are not
        adaptive.

    Raises:
      UserError: If diffrax is not installed or has no such method, or the tolerance is
        out of range.
    """

    name: str
    num_steps: int
    rtol: float = 0.0

    def __post_init__(self):
        self._method()
        if self.rtol < 0:
            raise UserError(f"rtol={self.rtol:g}: expected a positive tolerance")

    def solve(
        self, field: Callable[[jax.Array, jax.Array], jax.Array], x: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Integrate dx/dt = field(t, x) from 0 to 1, in float32.

        The error of an adaptive step is the root mean square over all of the state, so
        that all sequences of a batch have the same steps.

        Returns:
          x(1), and the number of evaluations of the field. If adaptive steps become too
          many, x(1) is not a number.
        """
        import diffrax

        method, adaptive = self._method(), {}
        if self.rtol:
            controller = diffrax.PIDController(rtol=self.rtol, atol=self.rtol)
            adaptive = {"stepsize_controller": controller}
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, x, args: field(t, x).astype(jnp.float32)),
            method,
            t0=0.0,
            t1=1.0,
            dt0=1.0 / self.num_steps,
            y0=x.astype(jnp.float32),
            max_steps=max(_MAX_STEPS, self.num_steps),
            throw=False,
            **adaptive,
        )
        done = solution.result == diffrax.RESULTS.successful
        x = jnp.where(done, solution.ys[-1], jnp.nan).astype(x.dtype)
        tableau, num_steps = method.tableau, solution.stats["num_steps"]
        reused = int(tableau.fsal)  # a step's last evaluation is the next one's first
        return x, num_steps * (tableau.num_stages - reused) + reused

    def _method(self):
        """Return the method as diffrax has it."""
        try:
            import diffrax
        except ImportError as error:
            raise UserError(
                f"solver={_PREFIX}{self.name}: diffrax is missing; pip install -e"
                " '.[ode]'"
            ) from error
        base = diffrax.AbstractERK
        known = sorted(
            name
            for name, x in vars(diffrax).items()
            if isinstance(x, type) and issubclass(x, base) and x is not base
        )
        if self.name not in known:
            raise UserError(
                f"solver={_PREFIX}{self.name}: diffrax has no explicit Runge-Kutta"
                f" method of this name; use one of {', '.join(known)}"
            )
        return getattr(diffrax, self.name)()


def parse(text: str | None, num_steps: int, rtol: float) -> DiffraxSolver | None:
    """Return the solver that a text such as diffrax:Tsit5 names; None for None.

    Args:
      text: The text.
      num_steps: As `DiffraxSolver.num_steps`.
      rtol: As `DiffraxSolver.rtol`.

    Raises:
      UserError: As `DiffraxSolver`; or if the text has another form, or there is a
        tolerance but no solver.
    """
    if text is None and rtol:
        raise UserError(
            f"rtol={rtol:g}: the steps of the model's own solver are not adaptive; name"
            f" a solver, such as {_PREFIX}Tsit5"
        )
    if text is None:
        return None
    if not text.startswith(_PREFIX):
        raise UserError(
            f"solver={text}: expected the name of a method of diffrax, such as"
            f" {_PREFIX}Tsit5"
        )
    return DiffraxSolver(text.removeprefix(_PREFIX), num_steps, rtol)
