"""The banks of a hypernetwork, weights/LAYER/bank, which are most of its parameters.

A bank's gradient is kept as the two factors that it is the product of:
W(t) = sum_e u_e(t) F_e + B gives dL/dF_e = sum_t u_e(t) dL/dW(t), of rank T, where a
bank is as large as E blocks. Materialised, it would need the bank's memory again.

T times, E time embedding.
"""

import flax.struct
import jax
import jax.numpy as jnp


def split(tree: dict) -> tuple[dict, dict]:
    """What is like the parameters, without banks; and the banks, by unit."""
    units = tree.get("weights", {})
    banks = {name: unit["bank"] for name, unit in units.items() if "bank" in unit}
    rest = {
        name: {key: x for key, x in unit.items() if key != "bank"}
        for name, unit in units.items()
    }
    return tree | ({"weights": rest} if units else {}), banks


def join(rest: dict, banks: dict) -> dict:
    """What `split` took apart."""
    units = {
        name: unit | ({"bank": banks[name]} if name in banks else {})
        for name, unit in rest.get("weights", {}).items()
    }
    return rest | ({"weights": units} if units else {})


def tree_of(name: str, bank) -> dict:
    """Parameters that are this bank alone."""
    return {"weights": {name: {"bank": bank}}}


def bank_of(name: str, tree: dict):
    """The bank in it."""
    return tree["weights"][name]["bank"]


@flax.struct.dataclass
class BankGradient:
    """Stands for an array [E, *kernel]."""

    u_TE: jax.Array
    kernels_T: jax.Array  # dL/dW(t), [T, *kernel]

    def rows(self, start, count: int) -> "BankGradient":
        """That of `count` of the F_e."""
        u_TC = jax.lax.dynamic_slice_in_dim(self.u_TE, start, count, axis=1)
        return BankGradient(u_TC, self.kernels_T)

    def multiplied_out(self) -> jax.Array:
        """The array [E, *kernel]."""
        return jnp.tensordot(self.u_TE.T, self.kernels_T, 1)

    def square(self) -> jax.Array:
        """The squared norm: sum_st <u(s), u(t)> <dL/dW(s), dL/dW(t)>."""
        axes = tuple(range(1, self.kernels_T.ndim))
        gram_TT = jnp.tensordot(self.kernels_T, self.kernels_T, (axes, axes))
        # Rounding may leave a little less than nothing.
        return jnp.maximum(jnp.sum((self.u_TE @ self.u_TE.T) * gram_TT), 0.0)


def square(gradient: jax.Array | BankGradient) -> jax.Array:
    if isinstance(gradient, BankGradient):
        return gradient.square()
    return jnp.sum(jnp.square(gradient))


def rows(gradient: jax.Array | BankGradient, start, count: int):
    if isinstance(gradient, BankGradient):
        return gradient.rows(start, count)
    return jax.lax.dynamic_slice_in_dim(gradient, start, count)


def as_array(gradient: jax.Array | BankGradient) -> jax.Array:
    if isinstance(gradient, BankGradient):
        return gradient.multiplied_out()
    return gradient


def is_gradient(x) -> bool:
    """Where a tree of gradients ends."""
    return isinstance(x, BankGradient)
