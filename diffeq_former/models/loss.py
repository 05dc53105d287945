"""Next-token cross entropy that never materialises the logits of all positions.

The vocabulary is padded to a multiple of `TILE` if that adds at most 1 %: on GPUs,
matrix products with 50,257 columns are slower than with 50,304.

N batch shards, B sequences per shard, L length, C chunk of the length, D model,
V vocabulary.
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
      x_BLD: Normalised states; here B counts the sequences of all shards.
      unembedding_DV: The matrix from states to logits.
      targets_BL: Token ids, or `NO_TARGET`.
      chunk: Number of positions per sequence and chunk.

    Returns:
      float32 scalars: `loss`, the sum of -log p(target) in nats; `log_z_squared`, the
      sum of the squared log normaliser for the z-loss; `tokens`, the number of targets.
    """
    V = unembedding_DV.shape[1]
    unembedding_DV = _pad_vocabulary(unembedding_DV)
    # One copy per batch shard, so that gradients are summed over chunks within each
    # shard and reduced over the network once.
    N = num_shards("batch")
    unembedding_NDV = constrain(
        jnp.broadcast_to(
            unembedding_DV.astype(x_BLD.dtype), (N, *unembedding_DV.shape)
        ),
        *("batch", "state", "vocab"),
    )

    @jax.checkpoint
    def add_chunk(sums, chunk):
        x_NBCD, targets_NBC = chunk
        with jax.named_scope("head"):
            product = {"preferred_element_type": jnp.float32}
            logits_NBCV = jnp.einsum(
                "nbcd,ndv->nbcv", x_NBCD, unembedding_NDV, **product
            )
        if V < logits_NBCV.shape[-1]:
            is_token_V = jnp.arange(logits_NBCV.shape[-1]) < V
            logits_NBCV = jnp.where(is_token_V[None, None, None], logits_NBCV, -jnp.inf)
        mask_NBC = targets_NBC != NO_TARGET
        log_z_NBC = jax.nn.logsumexp(logits_NBCV, axis=-1)
        picked_NBC1 = jnp.take_along_axis(
            logits_NBCV, jnp.where(mask_NBC, targets_NBC, 0)[..., None], axis=-1
        )
        new = {
            "loss": jnp.where(mask_NBC, log_z_NBC - picked_NBC1[..., 0], 0.0),
            "log_z_squared": jnp.where(mask_NBC, jnp.square(log_z_NBC), 0.0),
            "tokens": mask_NBC.astype(jnp.float32),
        }
        return {
            name: sums[name] + x_NBC.sum((1, 2)) for name, x_NBC in new.items()
        }, None

    zeros = {name: jnp.zeros(N) for name in ("loss", "log_z_squared", "tokens")}
    chunks = (_split(x_BLD, chunk, N, 0), _split(targets_BL, chunk, N, NO_TARGET))
    sums_N = jax.lax.scan(add_chunk, zeros, chunks)[0]
    return jax.tree.map(jnp.sum, sums_N)


def _pad_vocabulary(unembedding_DV: jax.Array) -> jax.Array:
    """Append columns of zeros if they are few and the vocabulary is not sharded."""
    V = unembedding_DV.shape[1]
    padding = -V % TILE
    if 100 * padding > V or num_shards("vocab") > 1:
        return unembedding_DV
    return jnp.pad(unembedding_DV, ((0, 0), (0, padding)))


def _split(array_BL: jax.Array, chunk: int, N: int, fill: int) -> jax.Array:
    """Split [N B, L, ...] into chunks [L / C, N, B, C, ...], padding L to a multiple.

    A chunk takes every (L / C)-th position, so that it is sharded like the sequences.
    """
    NB, L, *rest = array_BL.shape
    chunk = min(chunk, L)
    padding = [(0, 0), (0, -L % chunk)] + [(0, 0)] * len(rest)
    padded = jnp.pad(array_BL, padding, constant_values=fill)
    chunks = padded.reshape(N, NB // N, chunk, -1, *rest)
    axes = ("batch", None, "length", None, *["state"] * len(rest))
    return jnp.moveaxis(constrain(chunks, *axes), 3, 0)
