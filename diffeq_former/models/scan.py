"""The scan over depth: one traced step, however many are taken."""

from collections.abc import Callable

import flax.linen as nn


def scan_over_grid(
    step: type[nn.Module], num_steps: int, policy: Callable | None, remat: bool
) -> type[nn.Module]:
    """Lifts a module `(x, per_step, context) -> (x, None)` to a scan over `per_step`.

    Parameters and `context` are the same at every step, caches and sown states get
    a leading axis of `num_steps`, and dropout draws anew at each step.

    Args:
      step: the module class of one step.
      num_steps: length of the leading axis of `per_step`.
      policy: what `jax.checkpoint` saves inside a step; None: nothing.
      remat: whether to rematerialise the step in the backward pass at all.
    """
    if remat:  # the scan keeps the step from being merged: no CSE barrier needed
        step = nn.remat(step, policy=policy, prevent_cse=False)
    return nn.scan(
        step,
        variable_broadcast="params",
        variable_axes={"cache": 0, "intermediates": 0, "costs": 0},
        split_rngs={"params": False, "dropout": True},
        in_axes=(0, nn.broadcast),
        length=num_steps,
    )
