"""Tokens that move by attention alone, with weights that change over time (C.8).

    dz_i/dt = beta(t) sum_j softmax_j(beta(t)^2 (z_i A)(z_j A)^T) z_j V

A and V are constant, and beta is a polynomial in time. Measured in the time s(t), the
integral of beta, tokens move at the speed of constant weights, so s is the amount of
attention so far. Polynomials with equal integrals up to the horizon differ only in the
factor beta^2 of the scores: in how sharp attention is at which s.

n tokens, d dimensions, T steps, S seeds, N heads, D model width, H head size.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from diffeq_former.config import ModelConfig
from diffeq_former.errors import UserError
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.norms import normalise_queries_and_keys
from diffeq_former.models.stabilisers import term_input

NUM_TOKENS, DIMENSIONS = 40, 3  # as in C.8
MAX_STEPS = 10_000


@dataclasses.dataclass(frozen=True)
class Beta:
    """The polynomial beta(t), by which both A and V are multiplied.

    Attributes:
      name: (t/T)^p or (1+t)^p, with the horizon T and a degree p from 0 to 9.
      horizon: Time at which the simulation ends.
      equal_integrals: Whether the polynomial is scaled to the integral of constant
        weights, beta = 1, up to the horizon.
    """

    name: str
    horizon: float
    equal_integrals: bool

    @property
    def scale(self) -> float:
        """The factor of the polynomial."""
        return (
            self.horizon / self._unscaled(self.horizon) if self.equal_integrals else 1
        )

    @property
    def largest(self) -> float:
        """The largest value of beta, which is that at the horizon."""
        is_shifted, power = self._form
        return self.scale * ((1 + self.horizon) ** (power - 1) if is_shifted else 1)

    def integral(self, t):
        """Return the integral of beta from 0 to t."""
        return self.scale * self._unscaled(t)

    def _unscaled(self, t):
        is_shifted, power = self._form
        if is_shifted:
            return ((1 + t) ** power - 1) / power
        return self.horizon * (t / self.horizon) ** power / power

    @property
    def _form(self) -> tuple[bool, int]:
        """Whether it is a power of 1 + t, and the power of its integral."""
        return self.name.startswith("(1"), 1 + int(self.name[-1])


def parse_betas(
    names: Sequence[str], horizon: float, equal_integrals: bool
) -> list[Beta]:
    """Return the polynomials that --polynomials names.

    Raises:
      UserError: If a name is not known or repeated, or there is none.
    """
    known = all(re.fullmatch(r"\((t/T|1\+t)\)\^[0-9]", name) for name in names)
    if not names or not known or len(set(names)) < len(names):
        raise UserError(
            f"--polynomials={','.join(names)}: expected distinct powers such as"
            " '(t/T)^0,(t/T)^2,(1+t)^2'"
        )
    return [Beta(name, horizon, equal_integrals) for name in names]


def count_steps(betas: Sequence[Beta], step_size: float) -> int:
    """Return the number of steps of at most `step_size` up to the common horizon.

    Raises:
      UserError: If the step is not positive, longer than the horizon, or so short that
        there are too many; or if step size x beta exceeds 1, where Euler steps no
        longer follow the equation.
    """
    steepest = max(betas, key=lambda beta: beta.largest)
    horizon, largest = steepest.horizon, steepest.largest
    given = f"--horizon={horizon:g} --step_size={step_size:g}"
    if not 0 < step_size <= horizon < np.inf:
        raise UserError(f"{given}: expected 0 < step_size <= horizon")
    if horizon / step_size > MAX_STEPS:
        raise UserError(
            f"{given}: these are {horizon / step_size:.3g} steps, but at most"
            f" {MAX_STEPS} are allowed; use longer ones"
        )
    num_steps = math.ceil(horizon / step_size * (1 - 1e-9))  # 10 / 0.05 are 200
    reached = horizon / num_steps * largest
    if reached > 1 + 1e-9:
        most = 0.99 / largest
        advice = "a shorter --horizon or a lower degree"
        if horizon / most < MAX_STEPS:
            advice = f"at most {most:.3g}"
        raise UserError(
            f"--step_size={step_size:g}: step_size * {steepest.name} reaches"
            f" {reached:.3g}, and steps above 1 do not integrate the ODE; use {advice}"
        )
    return num_steps


def step_betas(beta: Beta, num_steps: int) -> np.ndarray:
    """Return the mean of beta over each of equal steps up to the horizon [T].

    With the mean, the products of step size and beta add up to the integral of beta.
    """
    times = np.arange(num_steps + 1) / num_steps * beta.horizon
    return np.diff(beta.integral(times)) * num_steps / beta.horizon


def on_sphere(z_nd: jax.Array) -> jax.Array:
    """Project each token onto the unit sphere (Geshkovski et al., arXiv 2312.10794)."""
    return z_nd / jnp.linalg.norm(z_nd, axis=-1, keepdims=True)


def standardise(z_nd: jax.Array) -> jax.Array:
    """Scale each token to mean 0 and variance 1, as in C.8 (LayerNorm, no weights).

    Three coordinates with mean 0 and variance 1 form a circle.
    """
    return jax.nn.standardize(z_nd, epsilon=0.0)


NORMALISATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "sphere": on_sphere,
    "standardise": standardise,
    "none": lambda z_nd: z_nd,
}


def simulate(
    field: Callable, per_step, z_nd: jax.Array, h: float, normalise: Callable
) -> jax.Array:
    """Integrate z <- normalise(z + h field(step, z)) over the steps.

    Args:
      field: Function of one entry of `per_step` and the tokens [n, d].
      per_step: Pytree with a leading axis T: the inputs of the field at each step.
      z_nd: Initial tokens.
      h: Step size.
      normalise: Applied to the initial tokens and after every step.

    Returns:
      All states, including the initial one [T + 1, n, d].
    """

    def body(z_nd, step):
        return normalise(z_nd + h * field(step, z_nd)), z_nd

    last_nd, before_Tnd = jax.lax.scan(body, normalise(z_nd), per_step)
    return jnp.concatenate([before_Tnd, last_nd[None]])


def attention_field(a_dd: jax.Array, v_dd: jax.Array) -> Callable:
    """Return the vector field of C.8, a function of beta(t) and the tokens [n, d]."""

    def field(beta, z_nd):
        y_nd = z_nd @ (beta * a_dd)
        return jax.nn.softmax(y_nd @ y_nd.T) @ z_nd @ (beta * v_dd)

    return field


def random_weights(seed: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Sample A and V from N(0, 1) and tokens from U[-2, 2], as in C.8."""
    key_a, key_v, key_z = jax.random.split(jax.random.key(seed), 3)
    shape = (DIMENSIONS, DIMENSIONS)
    z_nd = jax.random.uniform(key_z, (NUM_TOKENS, DIMENSIONS), minval=-2, maxval=2)
    return jax.random.normal(key_a, shape), jax.random.normal(key_v, shape), z_nd


def identity_weights(seed: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return A = V = I and the tokens of `random_weights`."""
    eye_dd = jnp.eye(DIMENSIONS)
    return eye_dd, eye_dd, random_weights(seed)[2]


WEIGHTS = {"random": random_weights, "identity": identity_weights}


def trajectories(
    weights: str, betas_T: np.ndarray, h: float, normalisation: str, num_seeds: int
) -> np.ndarray:
    """Run the simulation for seeds 0, 1, ... and return all states [S, T + 1, n, d].

    Args:
      weights: One of `WEIGHTS`.
      betas_T: beta at each step, see `step_betas`.
      h: Step size.
      normalisation: One of `NORMALISATIONS`.
      num_seeds: Number of seeds.

    Raises:
      UserError: If the states overflow, which only --normalisation=none allows.
    """
    sampled = zip(*map(WEIGHTS[weights], range(num_seeds)), strict=True)
    stacked = map(jnp.stack, sampled)
    states = np.asarray(_trajectories(*stacked, betas_T, h, normalisation))
    if not np.isfinite(states).all():
        raise UserError(
            f"--normalisation={normalisation}: the states overflow; use a shorter"
            " --horizon or another normalisation"
        )
    return states


@functools.partial(jax.jit, static_argnames="normalisation")
def _trajectories(a_Sdd, v_Sdd, z_Snd, betas_T, h, normalisation: str) -> jax.Array:
    normalise = NORMALISATIONS[normalisation]
    return jax.vmap(
        lambda a, v, z: simulate(attention_field(a, v), betas_T, z, h, normalise)
    )(a_Sdd, v_Sdd, z_Snd)


def of_model(c: ModelConfig, weights: dict, products: dict, z_nD) -> np.ndarray:
    """Integrate the dynamics of a trained model's attention heads alone over depth.

    dx_i/dt = sum over heads of sum_j softmax_j(y_i QK y_j^T) y_j OV, where y is x after
    the norm before attention. Attention is not causal, as in C.8; biases and rotary
    positions are omitted.

    Args:
      c: The model's config.
      weights: Weights by name, with a leading axis T.
      products: Result of `spectra.products` for these weights.
      z_nD: Initial states.

    Returns:
      The states [T + 1, n, D].
    """

    def field(step, z_nD):
        weights, (q_NDH, k_NHD), (v_NDH, o_NHD) = step
        y_1nD = term_input(c, BLOCKS[c.block].norm, weights, "norm_1", z_nD)[None]
        q_NnH, k_NnH = y_1nD @ q_NDH, y_1nD @ jnp.swapaxes(k_NHD, 1, 2)
        if c.qk_norm:  # of queries without the factor of the scores
            q_NnH, k_NnH = normalise_queries_and_keys(
                c, weights, q_NnH * c.head_size**0.5, k_NnH
            )
            q_NnH = q_NnH * c.head_size**-0.5
        scores_Nnn = q_NnH @ jnp.swapaxes(k_NnH, 1, 2)
        return (jax.nn.softmax(scores_Nnn) @ (y_1nD @ v_NDH) @ o_NHD).sum(0)

    single = jax.tree.map(lambda w: jnp.asarray(w, jnp.float32), products)
    norms = {name: w for name, w in weights.items() if "scale" in w}
    per_step = (norms, single["qk"], single["ov"])
    h = c.interval / len(per_step[1][0])
    run = jax.jit(lambda *a: simulate(field, *a, h, lambda z_nD: z_nD))
    return np.asarray(run(per_step, jnp.asarray(z_nD)))
