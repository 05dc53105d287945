"""Weights as functions of depth: W(t) = sum_e u_e(t) F_e + B (paper, eq. 6).

A linear map has a bank F [E, *kernel], a base B [*kernel] and a bank of biases
[E, *bias], with b(t) = sum_e u_e(t) f_e. A norm has banks of its scale and shift, both
initialised to zero, with scale(t) = 1 + sum_e u_e(t) g_e. The coefficients u(t) are
computed by one MLP per linear map or norm, or by one MLP for all of them.

T times, E time embedding.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from diffeq_former.config import ModelConfig
from diffeq_former.models.init_scale import bank_stddev, kernel_stddev
from diffeq_former.models.parameters import normal
from diffeq_former.models.time_embedding import TimeMLPs, embed_times
from diffeq_former.models.weight_specs import LinearSpec, NormSpec, WeightSpecs


class Hypernetwork(nn.Module):
    """Weight source that generates weights from time embeddings."""

    config: ModelConfig
    specs: WeightSpecs

    @nn.compact
    def __call__(self) -> dict:
        num_mlps = 1 if self.config.time_mlp == "shared" else len(self.specs)
        parameters = {
            name: (_Norm if isinstance(spec, NormSpec) else _Linear)(
                self.config, spec, name=name
            )()
            for name, spec in self.specs.items()
        }
        return parameters | {
            "time_mlp": TimeMLPs(self.config, num_mlps, name="time_mlp")()
        }

    @staticmethod
    def tabulate(
        c: ModelConfig, specs: WeightSpecs, parameters, times_T: jax.Array
    ) -> dict:
        u = Hypernetwork.coefficients(c, specs, parameters, times_T)
        return {
            name: (_generate_norm if isinstance(spec, NormSpec) else _generate_linear)(
                c, parameters[name], u[name]
            )
            for name, spec in specs.items()
        }

    @staticmethod
    def coefficients(
        c: ModelConfig, specs: WeightSpecs, parameters, times_T: jax.Array
    ) -> dict[str, jax.Array]:
        """Return u(t) for each linear map and norm, by name: [T, E], float32."""
        u_MTE = embed_times(c, parameters["time_mlp"], times_T)
        return {name: u_MTE[m % u_MTE.shape[0]] for m, name in enumerate(specs)}


class _Linear(nn.Module):
    config: ModelConfig
    spec: LinearSpec

    @nn.compact
    def __call__(self) -> dict[str, jax.Array]:
        c, spec, E = self.config, self.spec, self.config.time_embed_dim
        bank_axes, stddev = ("time_embed", *spec.axes), bank_stddev(c, spec)
        parameters = {
            "bank": normal(self, "bank", stddev, (E, *spec.kernel), bank_axes)
        }
        if c.base:
            parameters["base"] = normal(
                self, "base", kernel_stddev(c, spec), spec.kernel, spec.axes
            )
        if spec.bias:
            stddev = stddev if c.initialization == "authors" else 0.0
            axes = ("time_embed", *spec.bias_axes)
            parameters["bias_bank"] = normal(
                self, "bias_bank", stddev, (E, *spec.bias_shape), axes
            )
        return parameters


class _Norm(nn.Module):
    config: ModelConfig
    spec: NormSpec

    @nn.compact
    def __call__(self) -> dict[str, jax.Array]:
        shape = (self.config.time_embed_dim, self.spec.size)
        axes = ("time_embed", "norm")
        names = ["scale_bank"] + ["shift_bank"] * self.spec.shift
        return {name: normal(self, name, 0.0, shape, axes) for name in names}


def _generate_linear(c: ModelConfig, parameters, u_TE: jax.Array) -> dict:
    kernel = _combine(u_TE, parameters["bank"])
    if "base" in parameters:
        kernel += parameters["base"][None]
    weights = {"kernel": kernel.astype(jnp.dtype(c.dtype))}
    if "bias_bank" in parameters:
        weights["bias"] = _combine(u_TE, parameters["bias_bank"])
    return weights


def _generate_norm(c: ModelConfig, parameters, u_TE: jax.Array) -> dict:
    weights = {"scale": 1.0 + _combine(u_TE, parameters["scale_bank"])}
    if "shift_bank" in parameters:
        weights["shift"] = _combine(u_TE, parameters["shift_bank"])
    return weights


@jax.custom_vjp
def _combine(u_TE: jax.Array, bank: jax.Array) -> jax.Array:
    """Return sum_e u_e F_e at each time, in float32, the dtype of the bank."""
    return jnp.tensordot(u_TE, bank, 1)


def _combine_forward(u_TE, bank):
    return _combine(u_TE, bank), (u_TE, bank)


def _combine_backward(saved, gradient_T):
    """The same gradients as autodiff, with products ordered to be fast on CPUs."""
    u_TE, bank = saved
    axes = tuple(range(1, bank.ndim))
    of_u_ET = jnp.tensordot(bank, gradient_T, (axes, axes))
    # Without the barrier, XLA makes the transpose part of the product and reorders it.
    return jax.lax.optimization_barrier(of_u_ET).T, jnp.tensordot(u_TE.T, gradient_T, 1)


_combine.defvjp(_combine_forward, _combine_backward)
