"""The scan over depth, which traces the step once for any number of steps."""

from collections.abc import Callable

import flax.linen as nn


def scan_over_grid(
    step: type[nn.Module], num_steps: int, policy: Callable | None, remat: bool
) -> type[nn.Module]:
    """Lift a module `(x, per_step, context) -> (x, None)` to a scan over `per_step`.

    All steps share parameters and `context`. Caches and sown values get a leading axis
    of length `num_steps`, and each step has its own dropout rng.

    Args:
      step: The module class of one step.
      num_steps: Length of the leading axis of `per_step`.
      policy: The values that `jax.checkpoint` saves inside a step; None saves nothing.
      remat: Whether to rematerialise the step in the backward pass.
    """
    if remat:  # a scan already prevents common subexpression elimination
        step = nn.remat(step, policy=policy, prevent_cse=False)
    return nn.scan(
        step,
        variable_broadcast="params",
        variable_axes={"past": 0, "cache": 0, "intermediates": 0, "costs": 0},
        split_rngs={"params": False, "dropout": True},
        in_axes=(0, nn.broadcast),
        length=num_steps,
    )
