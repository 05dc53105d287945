"""A block: what the vector field's two terms are, given weights."""

import dataclasses
from collections.abc import Callable

import jax

from diffeq_former.config import ModelConfig
from diffeq_former.models.units import Norm, Units


@dataclasses.dataclass(frozen=True)
class Block:
    """The field's terms as pure functions of the weights at one time.

    `attend(q_BLNH, k_BLKH, v_BLKH) -> o_BLNH` is given to the attention term by the
    model, which knows about masks, dropout and caches.
    """

    units: Callable[[ModelConfig], Units]
    # attention(config, weights, x_BLD, positions_BL, attend) -> dx_BLD
    attention: Callable[..., jax.Array]
    # feed_forward(config, weights, x_BLD) -> dx_BLD
    feed_forward: Callable[..., jax.Array]
    # norm(config, weights, x_BLD) -> x_BLD, of the terms
    norm: Callable[..., jax.Array]
    # final_norm(weights, x_BLD, eps) -> x_BLD, with the weights of `final_norm_unit`
    final_norm: Callable[..., jax.Array]
    final_norm_unit: Callable[[ModelConfig], Norm]
    learned_positions: bool
    tied_head: Callable[[ModelConfig], bool]
