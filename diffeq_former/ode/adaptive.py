"""Adaptive steps, by the error estimates and the step-size control of diffrax.

Kidger 2021 (arXiv 2202.02435), https://docs.kidger.site/diffrax. Requires the extra
`ode`.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from diffeq_former.errors import UserError
from diffeq_former.ode.solvers import (
    DIFFRAX,
    SOLVERS,
    diffrax_method,
    get_solver,
)

# Our solvers with a second method of lower order in the same stages, as diffrax has
# them: Euler's.
_EMBEDDED = {"heun": "Heun", "midpoint": "Midpoint"}
_MAX_STEPS = 4096  # attempted


class Solution(NamedTuple):
    """The result of adaptive steps."""

    x: jax.Array  # the state at the end; not a number if steps became too many
    num_evaluations: jax.Array  # of the field
    points: jax.Array  # ends of the steps, from the first to 1, then infinities


@dataclasses.dataclass(frozen=True)
class AdaptiveSolver:
    """A method that chooses its steps.

    Attributes:
      name: heun, midpoint, or diffrax:NAME for an explicit Runge-Kutta method.
      rtol: The tolerance of the error of a step, relative to 1 + |x|.
      first_step: The length of the first step that is tried.

    Raises:
      UserError: If diffrax is not installed or has no such method, the method has no
        estimate of its error, or the tolerance is out of range.
    """

    name: str
    rtol: float
    first_step: float

    def __post_init__(self):
        self._method()
        if not 0 < self.rtol < float("inf"):
            raise UserError(f"rtol={self.rtol:g}: expected a positive tolerance")

    def solve(
        self,
        field: Callable[[jax.Array, jax.Array], jax.Array],
        x: jax.Array,
        counts: jax.Array | None = None,
    ) -> Solution:
        """Integrate dx/dt = field(t, x) from 0 to 1, in float32.

        The error of a step is the root mean square over all of the state, so that all
        sequences of a batch have the same steps.

        Args:
          field: The vector field.
          x: The state at 0.
          counts: Whether an entry counts for the error, broadcast to x; None: all do.
        """
        import diffrax

        method = self._method()

        def rms(error: jax.Array) -> jax.Array:
            where = None if counts is None else jnp.broadcast_to(counts, error.shape)
            return jnp.sqrt(jnp.mean(jnp.square(error), where=where))

        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, x, args: field(t, x).astype(jnp.float32)),
            method,
            t0=0.0,
            t1=1.0,
            dt0=self.first_step,
            y0=x.astype(jnp.float32),
            stepsize_controller=diffrax.PIDController(self.rtol, self.rtol, norm=rms),
            saveat=diffrax.SaveAt(
                subs=[
                    diffrax.SubSaveAt(t1=True),
                    diffrax.SubSaveAt(steps=True, fn=lambda t, x, args: None),
                ]
            ),
            max_steps=_MAX_STEPS,
            throw=False,
        )
        _, points = solution.ts
        [last], _ = solution.ys
        done = solution.result == diffrax.RESULTS.successful
        tableau, num_steps = method.tableau, solution.stats["num_steps"]
        reused = int(tableau.fsal)  # a step's last evaluation is the next one's first
        return Solution(
            jnp.where(done, last, jnp.nan).astype(x.dtype),
            num_steps * (tableau.num_stages - reused) + reused,
            points,
        )

    def check(self, reached_end: bool) -> None:
        """Raise UserError if adaptive steps ended before the end of depth."""
        if not reached_end:
            raise UserError(
                f"rtol={self.rtol:g}: {self.name} takes too many steps for this model;"
                " use a larger tolerance"
            )

    def _method(self):
        """Return the method as diffrax has it."""
        if self.name in SOLVERS and self.name not in _EMBEDDED:
            raise UserError(
                f"solver={self.name}: it has no estimate of its error, by which steps"
                f" adapt to rtol; use {', '.join(_EMBEDDED)} or a method of diffrax,"
                f" such as {DIFFRAX}Tsit5"
            )
        get_solver(self.name)
        name = _EMBEDDED.get(self.name, self.name.removeprefix(DIFFRAX))
        return diffrax_method(name)
