"""Logits of states, for training and inference.

D model, V vocabulary.
"""

import jax
import jax.numpy as jnp


@jax.named_scope("head")
def project(x: jax.Array, head_DV: jax.Array, softcap: float) -> jax.Array:
    """Project normalised states [..., D] to logits [..., V], float32.

    Args:
      x: The states.
      head_DV: The matrix, in the dtype of the states.
      softcap: The cap c of logits that become c tanh(logits / c), as in Gemma 2 (Gemma
        Team 2024, arXiv 2408.00118); 0: none.
    """
    logits = jnp.einsum("...d,dv->...v", x, head_DV, preferred_element_type=jnp.float32)
    return softcap * jnp.tanh(logits / softcap) if softcap else logits


def softcap_slope(logits: jax.Array, softcap: float) -> jax.Array:
    """Return the derivative 1 - tanh^2 of capped logits by those before the cap.

    Args:
      logits: The capped logits, or -inf, where it is 0.
      softcap: The cap, above 0.
    """
    return 1 - jnp.square(jnp.maximum(logits / softcap, -1))
