"""Log-probabilities of tokens, and of the most likely ones at their positions.

B batch, L length, V vocabulary, N most likely tokens.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

MOST_LIKELY = 20  # the most that are reported at a position


class Scores(NamedTuple):
    """Scores of tokens on the device, in nats; zeros if they are not wanted."""

    token_BL: jax.Array
    top_ids_BLN: jax.Array
    top_BLN: jax.Array


class TokenScore(NamedTuple):
    """The score of one token on the host, and the most likely tokens with theirs."""

    token: int
    log_p: float | None  # None: nothing is before the token
    top: list[tuple[int, float]]  # in descending order


def score(
    logits: Callable[[], jax.Array], tokens_BL: jax.Array, V: int, wanted: jax.Array
) -> Scores:
    """Return the scores of tokens under the model's distribution.

    It is the softmax of the logits before penalties, temperature, top-k and the rest.

    Args:
      logits: Returns the logits [B, L, ids]; called on the device only if `wanted`.
      tokens_BL: The tokens.
      V: Ids from this one on are not among the most likely tokens.
      wanted: Whether any score is wanted.
    """
    N = min(MOST_LIKELY, V)

    def compute() -> Scores:
        log_p_BLV = jax.nn.log_softmax(logits())
        token_BL = jnp.take_along_axis(log_p_BLV, tokens_BL[..., None], 2)[..., 0]
        top_BLN, ids_BLN = jax.lax.top_k(log_p_BLV[..., :V], N)
        return Scores(token_BL, ids_BLN, top_BLN)

    def nothing() -> Scores:
        zeros_BL, zeros_BLN = (jnp.zeros((*tokens_BL.shape, *n)) for n in ((), (N,)))
        return Scores(zeros_BL, zeros_BLN.astype(jnp.int32), zeros_BLN)

    return jax.lax.cond(wanted, compute, nothing)
