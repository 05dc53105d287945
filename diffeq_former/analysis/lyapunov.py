"""Finite-time Lyapunov exponents along a model's trajectory (paper, eq. 7 and 8).

A perturbation y of a state follows dy/dt = J(x(t)) y. Here it is propagated by the
derivatives of the model's discrete steps; for Euler's method these are
y + h J(x_k, t_k) y. Exponents are growth rates per unit of the model's depth interval.

B batch (always 1), L sequence length, D model width, N heads, K exponents or key-value
heads, H head size, S keys, R two tokens, T grid steps, M entries of a perturbation.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from diffeq_former.analysis import depth
from diffeq_former.config import ModelConfig

SWEEPS = 3  # forward and backward sweeps of the subspace iteration
SPARE = 8  # additional directions, which speed up convergence of the leading ones


def exponents(push: Callable, per_step, y_MK: jax.Array, time: float) -> jax.Array:
    """Return the K leading exponents of a long chain of linear maps, by QR [K].

    All K perturbations are pushed through each step and orthonormalised again; the
    exponents are the time averages of the logarithms of their growth (Benettin et al.
    1980).

    Args:
      push: Function (step, y_M) -> y_M after the step; linear in y_M.
      per_step: Pytree with a leading axis of steps.
      y_MK: Linearly independent initial perturbations.
      time: Total time of all steps.
    """

    def stretch(q_MK, step):
        q_MK, r_KK = _stretch(push, q_MK, step)
        return q_MK, jnp.log(jnp.abs(jnp.diagonal(r_KK)))

    _, logs_TK = jax.lax.scan(stretch, jnp.linalg.qr(y_MK)[0], per_step)
    return logs_TK.sum(0) / time


def finite_time_exponents(
    push: Callable, per_step, y_MK: jax.Array, time: float
) -> jax.Array:
    """Return log(singular value) / time of a short chain of linear maps [K].

    Over a short chain, growth depends on the initial directions. These are aligned with
    the leading singular vectors by `SWEEPS` passes through the chain and back through
    the transposed maps (subspace iteration). The relative error of an exponent's
    singular value s_k is of the order (s_(K + 1) / s_k)^(4 SWEEPS). Args as for
    `exponents`.
    """

    def forward(q_MK, step):
        return _stretch(push, q_MK, step)

    def backward(q_MK, step):
        _, pull = jax.vjp(lambda y_M: push(step, y_M), q_MK[:, 0])
        return jnp.linalg.qr(_COLUMNS(lambda y_M: pull(y_M)[0])(q_MK))[0], None

    def sweep(_, q_MK):
        q_MK, _ = jax.lax.scan(forward, q_MK, per_step)
        return jax.lax.scan(backward, q_MK, per_step, reverse=True)[0]

    q_MK = jax.lax.fori_loop(0, SWEEPS, sweep, jnp.linalg.qr(y_MK)[0])
    _, r_TKK = jax.lax.scan(forward, q_MK, per_step)
    whole_KK, _ = jax.lax.scan(
        lambda p_KK, r_KK: (r_KK @ p_KK, None),
        jnp.eye(y_MK.shape[1], dtype=y_MK.dtype),
        r_TKK,
    )
    return jnp.log(jnp.linalg.svd(whole_KK, compute_uv=False)) / time


_COLUMNS = functools.partial(jax.vmap, in_axes=1, out_axes=1)


def _stretch(push: Callable, q_MK, step) -> tuple[jax.Array, jax.Array]:
    return tuple(jnp.linalg.qr(_COLUMNS(lambda y_M: push(step, y_M))(q_MK)))


@functools.partial(jax.jit, static_argnums=(0, 4, 5))
def token_to_token(
    c: ModelConfig, table: dict, states_TLD, last, field: str, num_exponents: int
) -> jax.Array:
    """Return the exponents of dY/dt = J_ij(t) Y, Y(0) = I (eq. 7) for all j [L, K].

    J_ij is the derivative of the field at token i by the state of token j; it is zero
    for later tokens j > i. As in the paper, each block is taken on its own; `coupled`
    and `influence` include effects that pass through other tokens.

    Args:
      c: The model's config.
      table: Weight table, arrays with leading axes [T, S].
      states_TLD: States before each step; a state after the last step is ignored.
      last: Position i of the token whose prediction is analysed.
      field: One of `depth.FIELDS`; the paper uses `attention`.
      num_exponents: Number of leading exponents K, in descending order.
    """
    per_step, D = (states_TLD[: c.num_layers], table), states_TLD.shape[-1]
    y_DK = _directions(D, min(D, num_exponents + SPARE), states_TLD.dtype)

    def of_token(j):
        def push(step, y_D):
            moved_D = _moved(c, step, y_D, j, last, field)
            return moved_D + jnp.where(last == j, 0, 1) * y_D  # I + h J_ij

        return finite_time_exponents(push, per_step, y_DK, c.interval)

    tokens_L = jnp.arange(states_TLD.shape[1])
    found_LK = jax.lax.map(of_token, tokens_L, batch_size=_AT_ONCE)
    return found_LK[:, :num_exponents]


@functools.partial(jax.jit, static_argnums=(0, 4, 5, 6))
def coupled(
    c: ModelConfig,
    table: dict,
    states_TLD,
    length,
    field: str,
    num_exponents: int,
    step: Callable = depth.step,
) -> jax.Array:
    """Return the leading exponents of dY/dt = J(x(t)) Y for all tokens (eq. 8) [K].

    Args as for `token_to_token`; tokens after the first `length` are padding, and
    `step` is the model's step, as `depth.step`.
    """
    L, D = states_TLD.shape[1:]
    mask_L1 = (jnp.arange(L) < length)[:, None]

    def push(x_and_weights, y_M):
        y_LD = jnp.where(mask_L1, y_M.reshape(L, D), 0)
        y_LD = tangent(c, x_and_weights, y_LD, field, step)
        return jnp.where(mask_L1, y_LD, 0).reshape(-1)

    per_step = (states_TLD[: c.num_layers], table)
    count = min(L * D, num_exponents + SPARE)
    y_LDK = _directions(L * D, count, states_TLD.dtype).reshape(L, D, -1)
    y_MK = jnp.where(mask_L1[..., None], y_LDK, 0).reshape(L * D, -1)
    found_K = finite_time_exponents(push, per_step, y_MK, c.interval)
    return found_K[:num_exponents]


@functools.partial(jax.jit, static_argnums=(0, 4, 5))
def influence(
    c: ModelConfig, table: dict, states_TLD, last, field: str, num_probes: int
) -> jax.Array:
    """Return how strongly the final state of token i depends on each initial state [L].

    The measure is the root mean square of the singular values of Phi_ij, the derivative
    of the final x_i by the initial x_j, which includes all paths through other tokens.
    It is estimated by pulling `num_probes` orthonormal directions at token i = `last`
    back through all steps, and exact for D probes. It is 0 for j > i; for an identity
    map it is 1 at j = i.
    """
    L, D = states_TLD.shape[1:]
    probes_DP = jnp.linalg.qr(_directions(D, num_probes, states_TLD.dtype))[0]
    y_PLD = jnp.zeros((num_probes, L, D), probes_DP.dtype).at[:, last].set(probes_DP.T)

    def pull_back(y_PLD, step):
        x_LD, weights_S = step
        _, pull = jax.vjp(lambda x_LD: depth.step(c, weights_S, x_LD, field), x_LD)
        return jax.vmap(lambda y_LD: pull(y_LD)[0])(y_PLD), None

    per_step = (states_TLD[: c.num_layers], table)
    y_PLD, _ = jax.lax.scan(pull_back, y_PLD, per_step, reverse=True)
    return jnp.sqrt(jnp.square(y_PLD).sum((0, 2)) / num_probes)


_AT_ONCE = 16  # tokens j whose perturbations are propagated in one batch


def tangent(
    c: ModelConfig,
    x_and_weights,
    y_LD: jax.Array,
    field: str,
    step: Callable = depth.step,
) -> jax.Array:
    """Return the directional derivative of a step along y."""
    x_LD, weights_S = x_and_weights
    return jax.jvp(lambda x: step(c, weights_S, x, field), (x_LD,), (y_LD,))[1]


def _moved(c: ModelConfig, step, y_D, j, i, field: str) -> jax.Array:
    """Return the change of token i after a step if token j <= i is perturbed by y [D].

    If the step evaluates attention once, only the rows of these two tokens need to be
    differentiated, which takes L / 2 times less work than `tangent` for all tokens.
    """
    (x_LD, weights_S), keys_and_values = step, []

    def record(q_BLNH, k_BLKH, v_BLKH):
        keys_and_values.append((k_BLKH, v_BLKH))
        return depth.attend(q_BLNH, k_BLKH, v_BLKH)

    depth.step(c, weights_S, x_LD, field, record)
    if len(keys_and_values) > 1:
        y_LD = jnp.zeros_like(x_LD).at[j].set(y_D)
        return tangent(c, step, y_LD, field)[i]
    [(k_BLKH, v_BLKH)], rows_R = keys_and_values, jnp.stack([j, i])

    def attend(q_BRNH, k_BRKH, v_BRKH):
        k_BSKH = k_BLKH.at[:, j].set(k_BRKH[:, 0])
        v_BSKH = v_BLKH.at[:, j].set(v_BRKH[:, 0])
        return depth.attend(q_BRNH, k_BSKH, v_BSKH, rows_R)

    y_RD = jnp.stack([y_D, jnp.where(i == j, 1, 0) * y_D])
    of_rows = functools.partial(
        depth.step, c, weights_S, field=field, attend=attend, positions_L=rows_R
    )
    return jax.jvp(of_rows, (x_LD[rows_R],), (y_RD,))[1][1]


def _directions(size: int, count: int, dtype) -> jax.Array:
    return jax.random.normal(jax.random.key(0), (size, count), dtype)
