"""Muon (Jordan et al. 2024): the momentum of each matrix, orthogonalised.

The update of a matrix is U V^T, where U S V^T is the momentum, approximated by five
Newton-Schulz iterations. Its size is that of an update by Adam (Liu et al. 2025,
arXiv 2502.16982, section 2.2), so that learning rates and weight decay of AdamW apply.

For a hypernetwork there are two choices of matrices. `muon` orthogonalises what is
stored: each F_e and B. `weight_space_muon` orthogonalises the momentum of dL/dW(t_k)
instead, with result O_k, and moves W(t_k) by -lr O_k with the smallest changes of F and
B that do so. A gradient step with gradients A_k of W(t_k) and the multipliers m_F and
m_B of both groups,

    dF_e = -lr m_F sum_k u_e(t_k) A_k,   dB = -lr m_B sum_k A_k,

would move W(t_j) by -lr sum_k K_jk A_k, where K_jk = m_F u(t_j) . u(t_k) + m_B. So A
solves K A = O, by least squares if K is singular, as with fewer F_e than times. A
hypernetwork is then trained as layers with weights of their own are by `muon`, to which
it is equal for these, but for the movement of u. It needs T matrices and T moments
instead of E + 1 (or 2E + 2 moments of AdamW).

The t_k are the times of the model's own grid, its nodes. Steps of training may be at
other times s. There, W(s) moves with the nodes by sum_k c_k(s) dW(t_k), where
c(s) = K^-1 K(s) and K_k(s) = m_F u(t_k) . u(s) + m_B, so that the gradient of W(t_k) is
the sum over s of c_k(s) dL/dW(s).

Shape suffixes: T times, N nodes, E time embedding.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from diffeq_former.config import ModelConfig, OptimizerConfig
from diffeq_former.models.blocks import linear_specs
from diffeq_former.models.grid import default_grid
from diffeq_former.models.partition import constrain, num_shards
from diffeq_former.models.transformer import Transformer
from diffeq_former.models.weight_specs import LinearSpec
from diffeq_former.ode.solvers import get_solver
from diffeq_former.training.bank_gradient import BankGradient
from diffeq_former.training.parts import Parts, bank_tree, get_bank, merge

MOMENTUM = 0.95
ITERATIONS = 5
# Root mean square of an update's entries, about that of updates by Adam.
UPDATE_RMS = 0.2
# Eigenvalues of K below this fraction of the largest count as 0.
SINGULAR = 1e-3


def muon(c: OptimizerConfig, model: ModelConfig) -> optax.GradientTransformation:
    """Return the transformation of gradients into orthogonalised momenta.

    It takes trees with paths weights/NAME/... to arrays [..., *kernel], whose leading
    axes are of layers, times or a bank: each matrix is orthogonalised on its own.

    Args:
      c: The optimizer's settings, of which it uses `mu_dtype`.
      model: The model's settings.
    """
    specs = linear_specs(model)

    def for_each(function, tree) -> dict:
        return jax.tree_util.tree_map_with_path(
            lambda path, x: function(specs[path[1].key], x), tree
        )

    orthogonalised = _whole_matrices(
        contrib.scale_by_muon(
            beta=MOMENTUM,
            ns_steps=ITERATIONS,
            mu_dtype=c.mu_dtype,
            weight_dimension_numbers=functools.partial(for_each, _dimension_numbers),
        ),
        for_each,
    )
    if model.parametrization == "mup":
        return orthogonalised  # which scales the updates of all parameters
    scaled = optax.stateless(lambda updates, _: for_each(_with_size_of_adam, updates))
    return optax.chain(orthogonalised, scaled)


def _whole_matrices(
    inner: optax.GradientTransformation, for_each: Callable
) -> optax.GradientTransformation:
    """Orthogonalise each matrix on one device.

    Matrices are distributed by their first leading axis, in zeros if its length is no
    multiple of the devices. Those without one are computed by every device. Otherwise
    each of the 15 products would be a sum over shards of the matrix.
    """

    def update(updates, state, params=None):
        del params
        gathered = for_each(_gather, updates), for_each(_gather, state.mu)
        directions, new = inner.update(gathered[0], state._replace(mu=gathered[1]))
        cut = functools.partial(jax.tree.map, lambda x, old: x[: len(old)])
        return (
            cut(for_each(_scatter, directions), updates),
            new._replace(mu=cut(for_each(_scatter, new.mu), updates)),
        )

    return optax.GradientTransformation(inner.init, update)


def _gather(spec: LinearSpec, x: jax.Array) -> jax.Array:
    if x.ndim == len(spec.kernel):
        return constrain(x, *[None] * x.ndim)
    padding = -len(x) % num_shards("matrices")
    x = jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1))
    return _whole(_distribute_over_fsdp(spec, x))


def _scatter(spec: LinearSpec, x: jax.Array) -> jax.Array:
    if x.ndim == len(spec.kernel):
        return constrain(x, *spec.axes)
    return constrain(_distribute_over_fsdp(spec, _whole(x)), None, *spec.axes)


def _whole(x: jax.Array) -> jax.Array:
    return constrain(x, "matrices", *[None] * (x.ndim - 1))


def _distribute_over_fsdp(spec: LinearSpec, x: jax.Array) -> jax.Array:
    """The step in between: XLA moves the shards of one mesh axis at a time."""
    return constrain(
        x, "embed", *(None if axis == "embed" else axis for axis in spec.axes)
    )


def _dimension_numbers(spec: LinearSpec, x: jax.Array) -> contrib.MuonDimensionNumbers:
    first = x.ndim - len(spec.kernel)
    inputs, outputs = (
        tuple(first + axis for axis in axes) for axes in spec.matrix_axes
    )
    return contrib.MuonDimensionNumbers(inputs, outputs)


def _with_size_of_adam(spec: LinearSpec, update: jax.Array) -> jax.Array:
    """Scale orthogonal matrices m x n, whose entries have mean square 1 / max(m, n)."""
    return UPDATE_RMS * max(spec.matrix_shape) ** 0.5 * update


def init_kernels(
    c: OptimizerConfig, model: ModelConfig, banks: dict[str, jax.Array]
) -> optax.OptState:
    """Return the state of dL/dW(t_k) with weight_space_muon, otherwise nothing.

    Args:
      c: The optimizer's settings.
      model: The model's settings.
      banks: The banks [E, *kernel], by the name of their layer.
    """
    if c.name != "weight_space_muon" or not banks:
        return ()
    T = default_grid(model).times_TS.size
    return muon(c, model).init(
        _kernel_tree({x: jnp.zeros((T, *F.shape[1:])) for x, F in banks.items()})
    )


def orthogonalise(
    c: OptimizerConfig,
    model: ModelConfig,
    gradients: Parts,
    state: optax.OptState,
    scale: jax.Array,
    params: Parts | None,
) -> tuple[Parts, optax.OptState]:
    """Return gradients of which those of banks and bases move W(t_k) by O_k.

    Args:
      c: The optimizer's settings.
      model: The model's settings.
      gradients: The gradients, those of banks as factors.
      state: The state that `init_kernels` or the last call returned.
      scale: A factor of all gradients, by which they are clipped.
      params: The parameters, if the gradients may be at other times than the nodes.
    """
    if params is None:
        u = {name: g.u_TE for name, g in gradients.banks.items()}
    else:
        u = _at_nodes(model, state, params)

    def moves(u_TE: jax.Array, u_SE: jax.Array) -> jax.Array:
        moves_TS = c.bank_multiplier * u_TE @ u_SE.T
        return moves_TS + c.base_multiplier if model.base else moves_TS

    inverses = {
        name: jnp.linalg.pinv(moves(u_NE, u_NE), rtol=SINGULAR, hermitian=True)
        for name, u_NE in u.items()
    }

    def at_nodes(name: str, gradient: BankGradient) -> jax.Array:
        if params is None:
            return scale * gradient.kernels_T
        weights_NT = inverses[name] @ moves(u[name], gradient.u_TE)
        return scale * jnp.tensordot(weights_NT, gradient.kernels_T, 1)

    kernels = _kernel_tree({x: at_nodes(x, g) for x, g in gradients.banks.items()})
    directions, state = muon(c, model).update(kernels, state)
    rest = jax.tree.map(lambda g: scale * g, gradients.rest)
    banks = {}
    for name, gradient in gradients.banks.items():
        pulled_N = jnp.tensordot(inverses[name], get_bank(name, directions), 1)
        if model.base:
            rest = merge(rest, {"weights": {name: {"base": pulled_N.sum(0)}}})
        banks[name] = BankGradient(u[name], pulled_N.astype(gradient.kernels_T.dtype))
    return gradients.replace(rest=rest, banks=banks), state


def _at_nodes(
    model: ModelConfig, state: optax.OptState, params: Parts
) -> dict[str, jax.Array]:
    """Return u(t_k) for each bank, [N, E], at the times that the moments are of."""
    num_times = len(jax.tree.leaves(optax.tree.get(state, "mu"))[0])
    num_steps = num_times // len(get_solver(model.solver).nodes)
    u = Transformer(model).apply(
        {"params": params.merge()},
        default_grid(model.at_depth(num_steps)),
        method="coefficients",
    )
    return {name: u[name] for name in params.banks}


def _kernel_tree(kernels_T: dict[str, jax.Array]) -> dict:
    return merge(*(bank_tree(name, x_T) for name, x_T in kernels_T.items()))
