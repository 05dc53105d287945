"""The scan over depth: what its steps share, and what each has for itself."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from cases import TINY, params_of, tokens_of

from diffeq_former.models.transformer import Transformer

RATE = 0.5


def test_dropout_is_sampled_anew_at_each_step():
    """With kernels of zero a step adds the feed-forward's last bias, or drops it."""
    c = dataclasses.replace(TINY, weights="shared", dropout=RATE)
    params = jax.tree.map(jnp.zeros_like, params_of(c))
    params["weights"]["ff_out"]["bias"] += 1.0
    _, sown = Transformer(c, train=True).apply(
        {"params": params},
        tokens_of(c),
        mutable=["intermediates"],
        rngs={"dropout": jax.random.key(0)},
    )
    [states_TBLD] = jax.tree.leaves(sown["intermediates"])
    masks_TBLD = np.diff(states_TBLD, axis=0) / c.step_size * (1 - RATE)
    assert len(masks_TBLD) > 1
    kept = np.isclose(masks_TBLD, 1.0)
    assert (kept | np.isclose(masks_TBLD, 0.0)).all()
    assert abs(kept.mean() - (1 - RATE)) < 0.1
    for one, other in zip(kept, kept[1:], strict=False):
        assert abs((one == other).mean() - 0.5) < 0.1
