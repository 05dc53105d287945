"""The interface of a block: the two terms of the vector field, given weights."""

import dataclasses
from collections.abc import Callable

import jax

from diffeq_former.config import ModelConfig
from diffeq_former.models.weight_specs import NormSpec, WeightSpecs


@dataclasses.dataclass(frozen=True)
class Block:
    """The terms of the vector field as pure functions of the weights at one time.

    The model passes `attend(q_BLNH, k_BLKH, v_BLKH) -> o_BLNH` to the attention term
    and handles masks, dropout and caches in it.
    """

    # Specifications of the linear maps and norms, by name.
    weight_specs: Callable[[ModelConfig], WeightSpecs]
    # attention(config, weights, x_BLD, positions_BL, attend) -> dx_BLD
    attention: Callable[..., jax.Array]
    # feed_forward(config, weights, x_BLD) -> dx_BLD
    feed_forward: Callable[..., jax.Array]
    # norm(config, weights, x_BLD) -> x_BLD, for the norms of the terms
    norm: Callable[..., jax.Array]
    # final_norm(weights, x_BLD, eps) -> x_BLD; `final_norm_spec` specifies its weights
    final_norm: Callable[..., jax.Array]
    final_norm_spec: Callable[[ModelConfig], NormSpec]
    tied_head: Callable[[ModelConfig], bool]
