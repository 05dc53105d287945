"""Next-token cross entropy that never materialises the logits of all positions.

The vocabulary is padded to a multiple of `TILE` if that adds at most 1 %: on GPUs,
matrix products with 50,257 columns are slower than with 50,304.

B sequences, L length, C chunk of the length, D model, V vocabulary.
"""

import jax
import jax.numpy as jnp

from diffeq_former.models.partition import constrain, num_shards

NO_TARGET = -1
TILE = 128


@jax.named_scope("loss")
def cross_entropy_sums(
    x_BLD: jax.Array, unembedding_DV: jax.Array, targets_BL: jax.Array, chunk: int
) -> dict[str, jax.Array]:
    """Return sums over all positions that have a target other than `NO_TARGET`.

    Logits exist for `chunk` positions per sequence at a time, also in the backward
    pass, which recomputes them.

    Args:
      x_BLD: Normalised states.
      unembedding_DV: The matrix from states to logits, in float32; it is cast to the
        dtype of the states. Its gradient is summed over chunks in float32.
      targets_BL: Token ids, or `NO_TARGET`.
      chunk: Number of positions per sequence and chunk.

    Returns:
      float32 scalars: `loss`, the sum of -log p(target) in nats; `log_z_squared`, the
      sum of the squared log normaliser for the z-loss; `tokens`, the number of targets.
    """
    B, V = len(x_BLD), unembedding_DV.shape[1]
    unembedding_DV = _pad_vocabulary(unembedding_DV)

    @jax.checkpoint
    def add_chunk(sums_B, chunk):
        x_BCD, targets_BC = chunk
        with jax.named_scope("head"):
            logits_BCV = jnp.einsum(
                "bcd,dv->bcv",
                x_BCD,
                unembedding_DV.astype(x_BCD.dtype),
                preferred_element_type=jnp.float32,
            )
        if V < logits_BCV.shape[-1]:
            is_token_V = jnp.arange(logits_BCV.shape[-1]) < V
            logits_BCV = jnp.where(is_token_V[None, None], logits_BCV, -jnp.inf)
        mask_BC = targets_BC != NO_TARGET
        log_z_BC = jax.nn.logsumexp(logits_BCV, axis=-1)
        picked_BC1 = jnp.take_along_axis(
            logits_BCV, jnp.where(mask_BC, targets_BC, 0)[..., None], axis=-1
        )
        new = {
            "loss": jnp.where(mask_BC, log_z_BC - picked_BC1[..., 0], 0.0),
            "log_z_squared": jnp.where(mask_BC, jnp.square(log_z_BC), 0.0),
            "tokens": mask_BC.astype(jnp.float32),
        }
        return {name: sums_B[name] + x_BC.sum(1) for name, x_BC in new.items()}, None

    # Sums of each sequence, so that devices add theirs up once, after the last chunk.
    zeros_B = {name: jnp.zeros(B) for name in ("loss", "log_z_squared", "tokens")}
    chunks = (_split(x_BLD, chunk, 0), _split(targets_BL, chunk, NO_TARGET))
    sums_B = jax.lax.scan(add_chunk, zeros_B, chunks)[0]
    return jax.tree.map(jnp.sum, sums_B)


def _pad_vocabulary(unembedding_DV: jax.Array) -> jax.Array:
    """Append columns of zeros if they are few and the vocabulary is not sharded."""
    V = unembedding_DV.shape[1]
    padding = -V % TILE
    if 100 * padding > V or num_shards("vocab") > 1:
        return unembedding_DV
    return jnp.pad(unembedding_DV, ((0, 0), (0, padding)))


def _split(array_BL: jax.Array, chunk: int, fill: int) -> jax.Array:
    """Split [B, L, ...] into chunks [L / C, B, C, ...], padding L to a multiple.

    A chunk takes every (L / C)-th position, so that it is sharded like the sequences.
    """
    B, L, *rest = array_BL.shape
    chunk = min(chunk, L)
    padding = [(0, 0), (0, -L % chunk)] + [(0, 0)] * len(rest)
    padded = jnp.pad(array_BL, padding, constant_values=fill)
    chunks = padded.reshape(B, chunk, -1, *rest)
    axes = ("batch", "length", None, *["state"] * len(rest))
    return jnp.moveaxis(constrain(chunks, *axes), 2, 0)
