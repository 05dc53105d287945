"""The gradient of a hypernetwork's bank, as two factors.

The weight of a linear layer is W(t) = sum_e u_e(t) F_e + B, where the bank F is as
large as E such weights; banks are most of the parameters. The gradient
dL/dF_e = sum_t u_e(t) dL/dW(t) has rank T and is stored as its two factors, as
materialising it would take as much memory as the bank.

Shape suffixes: T times, E time embedding.
"""

import flax.struct
import jax
import jax.numpy as jnp


@flax.struct.dataclass
class BankGradient:
    """The gradient of a bank [E, *kernel], as two factors."""

    u_TE: jax.Array  # the coefficients u_e(t)
    kernels_T: jax.Array  # dL/dW(t), [T, *kernel]

    def rows(self, start, count: int) -> "BankGradient":
        """Return the gradient of F_e for `count` values of e, from `start`."""
        u_TC = jax.lax.dynamic_slice_in_dim(self.u_TE, start, count, axis=1)
        return BankGradient(u_TC, self.kernels_T)

    def materialise(self) -> jax.Array:
        """Materialise the gradient, an array [E, *kernel]."""
        return jnp.tensordot(self.u_TE.T, self.kernels_T, 1)

    def square(self) -> jax.Array:
        """Return the squared norm, sum_st <u(s), u(t)> <dL/dW(s), dL/dW(t)>."""
        axes = tuple(range(1, self.kernels_T.ndim))
        gram_TT = jnp.tensordot(self.kernels_T, self.kernels_T, (axes, axes))
        # Rounding may make the sum slightly negative.
        return jnp.maximum(jnp.sum((self.u_TE @ self.u_TE.T) * gram_TT), 0.0)


def square(gradient: jax.Array | BankGradient) -> jax.Array:
    """Return the squared norm of a gradient."""
    if isinstance(gradient, BankGradient):
        return gradient.square()
    return jnp.sum(jnp.square(gradient))


def rows(gradient: jax.Array | BankGradient, start, count: int):
    """Return the gradient of `count` entries of the leading axis, from `start`."""
    if isinstance(gradient, BankGradient):
        return gradient.rows(start, count)
    return jax.lax.dynamic_slice_in_dim(gradient, start, count)


def as_array(gradient: jax.Array | BankGradient) -> jax.Array:
    """Return the gradient as an array, materialised if it is factored."""
    if isinstance(gradient, BankGradient):
        return gradient.materialise()
    return gradient


def is_gradient(x) -> bool:
    """Return whether x is a factored gradient, a leaf in a tree of gradients."""
    return isinstance(x, BankGradient)
