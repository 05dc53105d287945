"""Log-likelihoods of continuations of token sequences.

B batch, L padded length, N chunks of the length, C positions per chunk.
"""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from tqdm import tqdm

from diffeq_former.config import ModelConfig
from diffeq_former.distributed.mesh import (
    batch_sharding,
    local_sequences,
    mesh_hardware,
    num_batch_shards,
    on_mesh,
    replicated,
    shard_batch,
)
from diffeq_former.models.transformer import Transformer

SHORTEST_BUCKET = 32  # tokens; sequences are padded to this times a power of two
CHUNK = 128  # maximum number of positions of a sequence that have logits at once

# (params, pairs of context and continuation) -> (log p, whether greedy) of each pair
Score = Callable[
    [dict, Sequence[tuple[list[int], list[int]]]], list[tuple[float, bool]]
]


def make_score(c: ModelConfig, mesh: Mesh, batch_size: int) -> Score:
    """Return a function that scores continuations, sharded over the mesh.

    For each pair it returns log p(continuation | context) in nats, and whether greedy
    decoding from the context would give the continuation. Contexts have at least one
    token. Sequences that exceed the model's `max_len` are truncated on the left. The
    weights are tabulated once per call; one program is compiled for each padded length.

    Args:
      c: Config of the model.
      mesh: Mesh of the parameters.
      batch_size: Pairs per batch; rounded up to a multiple of the number of shards.
    """
    shards = num_batch_shards(mesh)
    num_sequences = -(-batch_size // shards) * shards
    process_sequences = local_sequences(mesh, num_sequences)
    tabulate, score_batch = _compile(c, mesh)

    def score(params: dict, pairs) -> list[tuple[float, bool]]:
        table = tabulate(params)
        lengths = [len(context) + len(more) - 1 for context, more in pairs]
        order = sorted(range(len(pairs)), key=lambda i: -lengths[i])
        scores = {}
        for start in tqdm(range(0, len(pairs), num_sequences), "scoring", disable=None):
            chosen = order[start : start + num_sequences]
            batch = _padded([pairs[i] for i in chosen], num_sequences, c.max_len)
            batch = {name: x_BL[process_sequences] for name, x_BL in batch.items()}
            results = score_batch(params, table, shard_batch(batch, mesh))
            row_scores = zip(*map(np.asarray, results), strict=True)
            for i, (log_p, greedy) in zip(chosen, row_scores, strict=False):
                scores[i] = (float(log_p), bool(greedy))
        return [scores[i] for i in range(len(pairs))]

    return score


def _compile(c: ModelConfig, mesh: Mesh):
    """Return params -> table, and (params, table, batch) -> (log p, greedy), [B]."""
    model = Transformer(c.for_inference(), hardware=mesh_hardware(mesh))

    def tabulate(params: dict):
        return model.apply({"params": params}, method="tabulate")

    def score_batch(params: dict, table: dict, batch_BL: dict):
        def score_chunk(chunk):
            x_BCD, targets_BC, scored_BC = chunk
            logits_BCV = model.apply({"params": params}, x_BCD, method="logits")
            log_p_BCV = jax.nn.log_softmax(logits_BCV)
            log_p_BC1 = jnp.take_along_axis(log_p_BCV, targets_BC[..., None], 2)
            greedy_BC = (log_p_BCV.argmax(-1) == targets_BC) | ~scored_BC
            return jnp.where(scored_BC, log_p_BC1[..., 0], 0).sum(1), greedy_BC.all(1)

        bound, inputs_BL = {"params": params}, batch_BL["inputs"]
        x_BLD = model.apply(bound, inputs_BL, table=table, method="hidden")
        arrays = (x_BLD, batch_BL["targets"], batch_BL["scored"])
        log_p_NB, greedy_NB = jax.lax.map(score_chunk, tuple(map(_chunks, arrays)))
        return log_p_NB.sum(0), greedy_NB.all(0)

    as_given = None
    scoring = jax.jit(
        score_batch,
        in_shardings=(as_given, as_given, batch_sharding(mesh)),
        out_shardings=replicated(mesh),
    )
    return on_mesh(mesh, jax.jit(tabulate)), on_mesh(mesh, scoring)


def _chunks(array_BL: jax.Array) -> jax.Array:
    """Reshape [B, L, ...] to [N, B, C, ...]."""
    B, L, *rest = array_BL.shape
    return jnp.moveaxis(array_BL.reshape(B, -1, math.gcd(L, CHUNK), *rest), 1, 0)


def _padded(pairs, num_sequences: int, max_len: int) -> dict[str, np.ndarray]:
    """Return inputs, targets and the mask of scored targets, [B, L], right-padded."""
    longest = max(len(context) + len(more) - 1 for context, more in pairs)
    L = SHORTEST_BUCKET
    while L < longest:
        L *= 2
    shape = (num_sequences, min(L, max_len))
    inputs_BL, targets_BL = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    scored_BL = np.zeros(shape, bool)
    for i, (context, more) in enumerate(pairs):
        whole = (context + more)[-(max_len + 1) :]
        n, m = len(whole) - 1, min(len(more), max_len)
        inputs_BL[i, :n], targets_BL[i, :n] = whole[:-1], whole[1:]
        scored_BL[i, n - m : n] = True
    return {"inputs": inputs_BL, "targets": targets_BL, "scored": scored_BL}
