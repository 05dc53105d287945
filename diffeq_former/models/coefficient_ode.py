"""Coefficients u(t) of the weights as the solution of an ODE of their own.

    du/dt = D(u, t) (K - K^T) D(u, t) u,   D = 1 + tanh(diag([u, t] G + g)),

with learned u(0), K, G and g. The matrix in front of u is
skew-symmetric: u(t) rotates and keeps its length, as in the flow of weights of
Choromanski et al. 2020 (ODE to an ODE, arXiv 2006.11421). The weights W(t) then
follow a trajectory that depends on where it is, as in Zhang et al. 2019 (ANODEV2,
arXiv 1906.04596), in place of a function of t. K starts with angular velocities up to
about the time scale, and G small: large gates make the flow chaotic, with gradients
that are hundreds of times those of all other parameters.

T times, E time embedding, M ODEs, N steps.
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from diffeq_former.models.parameters import Axes, normal
from diffeq_former.ode.solvers import SOLVERS

STEPS_PER_RADIAN = 2
GATE_STDDEV = 0.1


def parameters(
    module: nn.Module, M: int, E: int, time_scale: float, axes: Axes
) -> dict[str, jax.Array]:
    """Create u(0), K, G and g of M equations; `axes` are those of the time MLPs."""
    odes, inputs, hidden, out = axes
    stddev = time_scale * (2 * E) ** -0.5
    shapes = {
        "initial": (E**-0.5, (M, E), (odes, out)),
        "kernel_1": (GATE_STDDEV, (M, E + 1, E), (odes, inputs, hidden)),
        "bias_1": (0.0, (M, E), (odes, hidden)),
        "kernel_2": (stddev, (M, E, E), (odes, hidden, out)),
    }
    return {name: normal(module, name, *given) for name, given in shapes.items()}


def solve(ode: dict[str, jax.Array], times_T: jax.Array, time_scale: float):
    """Return u(t) at times in [0, 1], [M, T, E], float32.

    It is computed at N + 1 points by rk4 and between them by cubic polynomials with
    the right slopes, so that u is the same function of t on every grid.

    Args:
      ode: What `parameters` returned.
      times_T: The times.
      time_scale: The fastest rotation, in radians, over depth.
    """
    num_steps = math.ceil(STEPS_PER_RADIAN * time_scale)
    h = 1 / num_steps
    skew_MEE = ode["kernel_2"] - ode["kernel_2"].swapaxes(1, 2)

    def slope(t: jax.Array, u_ME: jax.Array) -> jax.Array:
        of_u_ME = _product(u_ME, ode["kernel_1"][:, :-1])
        of_t_ME = t * ode["kernel_1"][:, -1]
        gates_ME = 1 + jnp.tanh(of_u_ME + of_t_ME + ode["bias_1"])
        return gates_ME * _product(gates_ME * u_ME, skew_MEE)

    def step(u_ME, n):
        def term(node: int, u_ME: jax.Array) -> jax.Array:
            return slope(h * (n + rk4.nodes[node]), u_ME)

        return rk4.step([term], u_ME, h), (u_ME, slope(h * n, u_ME))

    rk4 = SOLVERS["rk4"]
    steps_N = jnp.arange(num_steps, dtype=jnp.float32)
    last_ME, (u_NME, slopes_NME) = jax.lax.scan(step, ode["initial"], steps_N)
    u_NME = jnp.concatenate([u_NME, last_ME[None]])
    slopes_NME = jnp.concatenate([slopes_NME, slope(1.0, last_ME)[None]])
    left_T = jnp.clip(times_T * num_steps // 1, 0, num_steps - 1).astype(jnp.int32)
    s_T11 = (times_T * num_steps - left_T)[:, None, None]
    hermite = [  # of the values and slopes at both ends (Hermite's basis)
        (u_NME[left_T], (1 + 2 * s_T11) * (1 - s_T11) ** 2),
        (u_NME[left_T + 1], s_T11**2 * (3 - 2 * s_T11)),
        (h * slopes_NME[left_T], s_T11 * (1 - s_T11) ** 2),
        (h * slopes_NME[left_T + 1], s_T11**2 * (s_T11 - 1)),
    ]
    u_TME = sum(value * weight for value, weight in hermite)
    return u_TME.swapaxes(0, 1)


def _product(u_ME: jax.Array, kernels_MEE: jax.Array) -> jax.Array:
    highest = jax.lax.Precision.HIGHEST
    return jnp.einsum("me,mef->mf", u_ME, kernels_MEE, precision=highest)
