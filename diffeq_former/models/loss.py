"""Next-token cross entropy that never materialises the logits of all positions.

Logits exist for one chunk of positions at a time. In training, the gradients of a chunk
are computed while its logits are there, so that they are not computed again in the
backward pass, which only scales these gradients.

The vocabulary is padded to a multiple of `TILE` if that adds at most 1 %: on GPUs,
matrix products with 50,257 columns are slower than with 50,304.

B sequences, L length, C positions of a chunk, c chunks, D model, V vocabulary.
"""

import functools

import jax
import jax.numpy as jnp

from diffeq_former.models.logits import project, softcap_slope
from diffeq_former.models.partition import constrain, num_shards

NO_TARGET = -1
TILE = 128

Sums = dict[str, jax.Array]


@jax.named_scope("loss")
def cross_entropy_sums(
    x_BLD: jax.Array,
    unembedding_DV: jax.Array,
    targets_BL: jax.Array,
    chunk: int,
    softcap: float = 0.0,
) -> Sums:
    """Return sums over all positions that have a target other than `NO_TARGET`.

    Args:
      x_BLD: Normalised states.
      unembedding_DV: The matrix from states to logits, in float32; it is cast to the
        dtype of the states.
      targets_BL: Token ids, or `NO_TARGET`.
      chunk: Number of positions per sequence and chunk.
      softcap: The cap of the logits, see models/logits.py; 0: none.

    Returns:
      float32 scalars: `loss`, the sum of -log p(target) in nats; `log_z_squared`, the
      sum of the squared log normaliser for the z-loss; `tokens`, the number of targets.
    """
    head_DV = _head(unembedding_DV, x_BLD.dtype)

    def add_chunk(sums_B, chunk):
        x_BCD, targets_BC = chunk
        logits_BCV = _logits(x_BCD, head_DV, unembedding_DV.shape[1], softcap)
        return _add(sums_B, *_terms(logits_BCV, targets_BC)), None

    chunks = _chunks(x_BLD, targets_BL, chunk)
    sums_B = jax.lax.scan(add_chunk, _zeros(len(x_BLD)), chunks)[0]
    return jax.tree.map(jnp.sum, sums_B)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def cross_entropy_objective(
    x_BLD: jax.Array,
    unembedding_DV: jax.Array,
    targets_BL: jax.Array,
    chunk: int,
    z_loss: float,
    softcap: float = 0.0,
) -> tuple[jax.Array, Sums]:
    """Return loss + z_loss * log_z_squared, and the sums of `cross_entropy_sums`.

    Only the first has gradients. That of the matrix is summed over chunks in float32.

    Args:
      x_BLD: As for `cross_entropy_sums`, as are the next three.
      unembedding_DV: The matrix.
      targets_BL: The targets.
      chunk: Number of positions.
      z_loss: The weight of `log_z_squared`.
      softcap: The cap.
    """
    sums = cross_entropy_sums(x_BLD, unembedding_DV, targets_BL, chunk, softcap)
    return sums["loss"] + z_loss * sums["log_z_squared"], sums


@jax.named_scope("loss")
def _forward(
    x_BLD, unembedding_DV, targets_BL, chunk: int, z_loss: float, softcap: float
):
    (B, L, D), V = x_BLD.shape, unembedding_DV.shape[1]
    head_DV = _head(unembedding_DV, x_BLD.dtype)

    def add_chunk(totals, chunk):
        sums_B, dhead_DV = totals
        x_BCD, targets_BC = chunk
        logits_BCV = _logits(x_BCD, head_DV, V, softcap)
        mask_BC, log_z_BC, picked_BC = _terms(logits_BCV, targets_BC)
        targets_BC1, log_z_BC1, mask_BC1 = (
            x_BC[..., None] for x_BC in (targets_BC, log_z_BC, mask_BC)
        )
        is_target_BCV = jnp.arange(head_DV.shape[1])[None, None] == targets_BC1
        p_BCV = jnp.exp(logits_BCV - log_z_BC1)
        dlogits_BCV = p_BCV * (1 + 2 * z_loss * log_z_BC1) - is_target_BCV
        if softcap:
            dlogits_BCV = dlogits_BCV * softcap_slope(logits_BCV, softcap)
        dlogits_BCV = jnp.where(mask_BC1, dlogits_BCV, 0).astype(x_BLD.dtype)
        with jax.named_scope("head"):
            dx_BCD = jnp.einsum("bcv,dv->bcd", dlogits_BCV, head_DV)
            product = {"preferred_element_type": dhead_DV.dtype}
            dhead_DV += jnp.einsum("bcd,bcv->dv", x_BCD, dlogits_BCV, **product)
        return (_add(sums_B, mask_BC, log_z_BC, picked_BC), dhead_DV), dx_BCD

    zeros = (_zeros(B), jnp.zeros(head_DV.shape, unembedding_DV.dtype))
    chunks = _chunks(x_BLD, targets_BL, chunk)
    (sums_B, dhead_DV), dx_cBCD = jax.lax.scan(add_chunk, zeros, chunks)
    # XLA for CPUs would fold a transpose into the product of a single chunk, which it
    # cannot execute in bfloat16.
    dhead_DV = jax.lax.optimization_barrier(dhead_DV)
    dx_BLD = jnp.moveaxis(dx_cBCD, 0, 2).reshape(B, -1, D)[:, :L]  # see `_split`
    sums = jax.tree.map(jnp.sum, sums_B)
    objective = sums["loss"] + z_loss * sums["log_z_squared"]
    return (objective, sums), (dx_BLD, dhead_DV[:, :V])


def _backward(chunk: int, z_loss: float, softcap: float, gradients, cotangents):
    scale, _ = cotangents
    return *(scale.astype(gradient.dtype) * gradient for gradient in gradients), None


cross_entropy_objective.defvjp(_forward, _backward)


def _logits(x_BCD, head_DV: jax.Array, V: int, softcap: float) -> jax.Array:
    """Return float32 logits, of which those after the first V are -inf."""
    logits_BCV = project(x_BCD, head_DV, softcap)
    if V == head_DV.shape[1]:
        return logits_BCV
    is_token_V = jnp.arange(head_DV.shape[1]) < V
    return jnp.where(is_token_V[None, None], logits_BCV, -jnp.inf)


def _terms(logits_BCV: jax.Array, targets_BC: jax.Array) -> tuple[jax.Array, ...]:
    """Return where there are targets, the log normalisers, and the targets' logits."""
    mask_BC = targets_BC != NO_TARGET
    tokens_BC1 = jnp.where(mask_BC, targets_BC, 0)[..., None]
    if num_shards("vocab") > 1:
        # XLA's partitioner aborts on a gather from them if `fsdp` and `sequence` also
        # have several devices.
        is_picked_BCV = jnp.arange(logits_BCV.shape[-1])[None, None] == tokens_BC1
        picked_BC = jnp.where(is_picked_BCV, logits_BCV, 0).sum(-1)
    else:
        picked_BC = jnp.take_along_axis(logits_BCV, tokens_BC1, axis=-1)[..., 0]
    return mask_BC, jax.nn.logsumexp(logits_BCV, axis=-1), picked_BC


def _zeros(B: int) -> Sums:
    # Sums of each sequence, so that devices add theirs up once, after the last chunk.
    return {name: jnp.zeros(B) for name in ("loss", "log_z_squared", "tokens")}


def _add(sums_B: Sums, mask_BC, log_z_BC, picked_BC) -> Sums:
    new = {
        "loss": jnp.where(mask_BC, log_z_BC - picked_BC, 0.0),
        "log_z_squared": jnp.where(mask_BC, jnp.square(log_z_BC), 0.0),
        "tokens": mask_BC.astype(jnp.float32),
    }
    return {name: sums_B[name] + x_BC.sum(1) for name, x_BC in new.items()}


def _head(unembedding_DV: jax.Array, dtype) -> jax.Array:
    """Cast, and append columns of zeros if they are few and none are sharded."""
    V = unembedding_DV.shape[1]
    padding = -V % TILE
    if 100 * padding > V or num_shards("vocab") > 1:
        padding = 0
    return jnp.pad(unembedding_DV.astype(dtype), ((0, 0), (0, padding)))


def _chunks(
    x_BLD: jax.Array, targets_BL: jax.Array, chunk: int
) -> tuple[jax.Array, jax.Array]:
    return _split(x_BLD, chunk, 0), _split(targets_BL, chunk, NO_TARGET)


def _split(array_BL: jax.Array, chunk: int, fill: int) -> jax.Array:
    """Split [B, L, ...] into chunks [c, B, C, ...], padding L to a multiple.

    A chunk takes every c-th position, so that it is sharded like the sequences.
    """
    B, L, *rest = array_BL.shape
    chunk = min(chunk, L)
    padding = [(0, 0), (0, -L % chunk)] + [(0, 0)] * len(rest)
    padded = jnp.pad(array_BL, padding, constant_values=fill)
    chunks = padded.reshape(B, chunk, -1, *rest)
    axes = ("batch", "length", None, *["state"] * len(rest))
    return jnp.moveaxis(constrain(chunks, *axes), 2, 0)
