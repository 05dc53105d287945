"""The preconditioner that a hypernetwork implies, for a plain transformer.

A gradient step on the bank F and the base B of W(t) = sum_e u_e(t) F_e + B, with the
rates lr of B and m * lr of F, moves the weights of layer j, to first order, by

    dW_j = -lr sum_k K_jk G_k,   K_jk = 1 + m u(t_j) . u(t_k),

where G_k = dL/dW_k. When training starts, u has length 1 and the same correlation c
between any two layers, so that K = m (1 - c) I + (1 + m c) 1 1^T: the sum of all
gradients moves all layers alike. `couple_layers` does the same to layers with weights
of their own, and with any optimizer in the place of the gradient step:

    dW_j = -lr (D(G_j) + coupling * D(mean_k G_k)),

where D is the optimizer's direction, with moments of its own for the mean. This equals
the optimizer applied to B and D_j in W_j = B + D_j.
"""

import optax
from flax import traverse_util


def couple_layers(
    inner: optax.GradientTransformation, coupling: float
) -> optax.GradientTransformation:
    """Add to the direction of each layer that of the mean gradient of all layers.

    Args:
      inner: The transformation of gradients into directions of updates.
      coupling: The factor of the added direction.
    """

    def init(params):
        return inner.init(params), inner.init(_means(params))

    def update(updates, state, params=None):
        del params
        own, own_state = inner.update(updates, state[0])
        mean, mean_state = inner.update(_means(updates), state[1])
        flat = traverse_util.flatten_dict(own)
        for path, x in traverse_util.flatten_dict(mean).items():
            flat[path] += coupling * x[None]
        return traverse_util.unflatten_dict(flat), (own_state, mean_state)

    return optax.GradientTransformation(init, update)


def _means(tree: dict) -> dict:
    """Return the means over layers of the kernels [L, ...] of a tree, and only them."""
    return traverse_util.unflatten_dict(
        {
            path: x.mean(0)
            for path, x in traverse_util.flatten_dict(tree).items()
            if path[0] == "weights" and path[-1] == "kernel"
        }
    )
