"""The one place where times come from."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np


def stage_times(num_steps: int, nodes: Sequence[float]) -> jax.Array:
    """Times [num_steps, len(nodes)] in [0, 1], float32: step k has (k + node) / L.

    Computed exactly and rounded once, so that the grid of L steps is the same
    wherever it is needed and t = 1 is reached exactly.
    """
    steps = np.arange(num_steps)[:, None] + np.asarray(nodes)[None, :]
    return jnp.asarray(steps / num_steps, jnp.float32)
