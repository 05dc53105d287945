"""Next-token cross entropy without ever holding all logits.

B batch, L length, C chunk of the length, D model, V vocabulary.
"""

import jax
import jax.numpy as jnp

NO_TARGET = -1


def cross_entropy_sums(
    x_BLD: jax.Array, unembedding_DV: jax.Array, targets_BL: jax.Array, chunk: int
) -> dict[str, jax.Array]:
    """Sums over all places that have a target (not `NO_TARGET`), float32 scalars.

    Logits exist for `chunk` positions of each sequence at a time, also in the
    backward pass, which computes them again.

    Returns:
      `loss`: sum of -log p(target) in nats; `log_z_squared`: sum of the squared
      log normaliser, for the z-loss; `tokens`: how many places were summed.
    """
    unembedding_DV = unembedding_DV.astype(x_BLD.dtype)

    @jax.checkpoint
    def add_chunk(sums, chunk):
        x_BCD, targets_BC = chunk
        logits_BCV = jnp.einsum(
            "bcd,dv->bcv", x_BCD, unembedding_DV, preferred_element_type=jnp.float32
        )
        mask_BC = targets_BC != NO_TARGET
        log_z_BC = jax.nn.logsumexp(logits_BCV, axis=-1)
        picked_BC1 = jnp.take_along_axis(
            logits_BCV, jnp.where(mask_BC, targets_BC, 0)[..., None], axis=-1
        )
        new = {
            "loss": jnp.where(mask_BC, log_z_BC - picked_BC1[..., 0], 0.0).sum(),
            "log_z_squared": jnp.where(mask_BC, jnp.square(log_z_BC), 0.0).sum(),
            "tokens": mask_BC.sum().astype(jnp.float32),
        }
        return jax.tree.map(jnp.add, sums, new), None

    zeros = {name: jnp.zeros(()) for name in ("loss", "log_z_squared", "tokens")}
    chunks = (_split(x_BLD, chunk, 0), _split(targets_BL, chunk, NO_TARGET))
    return jax.lax.scan(add_chunk, zeros, chunks)[0]


def _split(array_BL: jax.Array, chunk: int, fill: int) -> jax.Array:
    """[B, L, ...] -> [L / C, B, C, ...], the length filled up to a multiple of C."""
    B, L, *rest = array_BL.shape
    chunk = min(chunk, L)
    padding = [(0, 0), (0, -L % chunk)] + [(0, 0)] * len(rest)
    padded = jnp.pad(array_BL, padding, constant_values=fill)
    return jnp.moveaxis(padded.reshape(B, -1, chunk, *rest), 1, 0)
