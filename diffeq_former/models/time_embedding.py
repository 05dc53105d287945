"""Map times to the coefficients u(t) of the weights (paper, eq. 6, appendix A).

T times, S frequencies, E time embedding, M time MLPs.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from diffeq_former.config import ModelConfig
from diffeq_former.models import coefficient_ode
from diffeq_former.models.parameters import normal

MLP_AXES = ("time_mlp", "time_features", "time_hidden", "time_embed")

_einsum = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)


def features(times_T: jax.Array, num_frequencies: int, time_scale: float) -> jax.Array:
    """Return the sinusoidal features of times, [T, 2S + 1].

    They are t, sin(time_scale t w_k) and cos(time_scale t w_k), with
    w_k = 10000^(-k/S), always in float32: in bfloat16 the fast sinusoids are noise.
    """
    t_T = times_T.astype(jnp.float32)
    w_S = 10000.0 ** (-jnp.arange(num_frequencies, dtype=jnp.float32) / num_frequencies)
    angles_TS = time_scale * t_T[:, None] * w_S[None, :]
    return jnp.concatenate(
        [t_T[:, None], jnp.sin(angles_TS), jnp.cos(angles_TS)], axis=1
    )


class TimeMLPs(nn.Module):
    """The parameters of M two-layer MLPs of width E, tables or ODEs, stacked."""

    config: ModelConfig
    num_mlps: int

    @nn.compact
    def __call__(self) -> dict[str, jax.Array]:
        c, M, E = self.config, self.num_mlps, self.config.time_embed_dim
        width = 2 * c.num_frequencies + 1
        second = 0.02 if c.initialization == "authors" else E**-0.5
        mlps, features, hidden, out = MLP_AXES
        if c.time_mlp == "ode":
            return coefficient_ode.parameters(self, M, E, c.time_scale, MLP_AXES)
        if c.time_mlp == "table":
            shape, axes = (M, c.segments, E), (mlps, "layers", out)
            return {"coefficients": normal(self, "coefficients", second, shape, axes)}
        parameters = {
            "kernel_1": (0.02, (M, width, E), (mlps, features, hidden)),
            "bias_1": (0.0, (M, E), (mlps, hidden)),
            "kernel_2": (second, (M, E, E), (mlps, hidden, out)),
            "bias_2": (0.0, (M, E), (mlps, out)),
        }
        return {name: normal(self, name, *rest) for name, rest in parameters.items()}


def embed_times(c: ModelConfig, mlps, times_T: jax.Array) -> jax.Array:
    """Return u_m(t) of each MLP or table m at each time, [M, T, E], float32.

    With `initialization="unit"`, u(t) is normalised to length 1.
    """
    if c.time_mlp == "ode":
        u_MTE = coefficient_ode.solve(mlps, times_T, c.time_scale)
    elif c.time_mlp == "table":
        u_MTE = _interpolate(mlps["coefficients"], times_T)
    else:
        u_MTE = _apply_mlps(c, mlps, times_T)
    if c.initialization == "unit":
        u_MTE = u_MTE * jax.lax.rsqrt(jnp.square(u_MTE).sum(-1, keepdims=True) + 1e-12)
    return u_MTE


def _interpolate(u_MNE: jax.Array, times_T: jax.Array) -> jax.Array:
    """Interpolate linearly between the N layers, at 1/N, 2/N, ..., 1."""
    position_T = jnp.maximum(times_T * u_MNE.shape[1] - 1, 0)
    left_T = jnp.floor(position_T).astype(jnp.int32)
    right_T = jnp.minimum(left_T + 1, u_MNE.shape[1] - 1)
    weight_1T1 = (position_T - left_T)[None, :, None]
    return (1 - weight_1T1) * u_MNE[:, left_T] + weight_1T1 * u_MNE[:, right_T]


def _apply_mlps(c: ModelConfig, mlps, times_T: jax.Array) -> jax.Array:
    phi_TF = features(times_T, c.num_frequencies, c.time_scale)
    h_MTE = _einsum("tf,mfe->mte", phi_TF, mlps["kernel_1"]) + mlps["bias_1"][:, None]
    h_MTE = jax.nn.silu(h_MTE)
    return _einsum("mte,mef->mtf", h_MTE, mlps["kernel_2"]) + mlps["bias_2"][:, None]
