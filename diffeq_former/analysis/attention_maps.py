"""Figures of attention maps. L length, N heads, T grid steps."""

import numpy as np


def describe(maps_TNLL: np.ndarray) -> dict[str, np.ndarray]:
    """Of each head at each step, means over the tokens that attend: [T, N].

    Returns:
      `entropy`: nats; log of how many tokens are looked at.
      `distance`: how many tokens back the looks go.
      `first`: the share that the first token gets.
      `self`: the share that each token gives itself.
    """
    p = np.asarray(maps_TNLL, float)
    places = np.arange(p.shape[-1])
    back_LL = places[:, None] - places[None]
    logs = np.log(np.where(p > 0, p, 1))
    return {
        "entropy": -(p * logs).sum(-1).mean(-1),
        "distance": (p * back_LL).sum(-1).mean(-1),
        "first": p[..., 0].mean(-1),
        "self": np.diagonal(p, axis1=-2, axis2=-1).mean(-1),
    }
