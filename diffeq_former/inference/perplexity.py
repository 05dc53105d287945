"""How well a model predicts a held-out split. B batch, L length."""

import math
from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from tqdm import tqdm

from diffeq_former.config import Config
from diffeq_former.data.dataset import Dataset
from diffeq_former.data.pipeline import validation_batches
from diffeq_former.distributed.mesh import (
    batch_sharding,
    check_length_fits,
    num_row_shares,
    on_mesh,
    replicated,
    rows_at_once,
    rows_of_process,
    shard_batch,
)
from diffeq_former.models.loss import cross_entropy_sums
from diffeq_former.models.transformer import Transformer

SPLIT = "validation"


class Evaluate(Protocol):
    def __call__(
        self, params: dict, *, should_stop: Callable[[], bool] = ...
    ) -> dict[str, float] | None:
        """Figures of the whole validation split.

        Args:
          params: of the model, on the mesh's devices or the host.
          should_stop: asked before each batch.

        Returns:
          `loss` (nats a token), `perplexity` (its exponential), `bits_per_byte` (all
          nats / ln 2 / bytes of the split's text), `tokens` (how many were predicted);
          None if `should_stop` answered True.
        """


def make_evaluate(config: Config, dataset: Dataset, mesh: Mesh) -> Evaluate:
    """The evaluation of one model, compiled once, spread over the mesh's devices.

    A batch has as many rows as a micro-batch of training, and is filled up so that
    devices can share it. Its size changes no figure: sums go over the whole split.

    Raises:
      UserError: if the mesh's axis `sequence` does not divide the sequences.
    """
    check_length_fits(config.training, mesh, dataset.seq_len)
    split, shares = dataset.split(SPLIT), num_row_shares(mesh)
    batch_size = -(-rows_at_once(config.training, mesh) // shares) * shares
    num_batches = -(-split.rows // batch_size)
    places = rows_of_process(mesh, batch_size)
    tabulate, sum_batch = _compile(config, mesh)

    def evaluate(params: dict, *, should_stop=lambda: False):
        table = tabulate(params)
        batches = validation_batches(
            dataset, batch_size=batch_size, split=SPLIT, places=places
        )
        sums = previous = np.zeros(2)
        with tqdm(batches, SPLIT, num_batches, leave=False, disable=None) as bar:
            for batch in bar:
                if should_stop():
                    return None
                current = sum_batch(params, table, shard_batch(batch, mesh))
                sums = sums + jax.device_get(previous)  # while the device goes on
                previous = current
        return _figures(*(sums + jax.device_get(previous)), split.text_bytes)

    return evaluate


def _compile(config: Config, mesh: Mesh):
    """Params -> table, and (params, table, batch) -> float32 [loss, tokens]."""
    model, chunk = Transformer(config.model.for_inference()), config.training.loss_chunk

    def tabulate(params: dict):
        return model.apply({"params": params}, method="tabulate")

    def sum_batch(params: dict, table: dict, batch_BL: dict) -> jax.Array:
        bound, inputs_BL = {"params": params}, batch_BL["inputs"]
        x_BLD = model.apply(bound, inputs_BL, table=table, method="hidden")
        unembedding_DV = model.apply(bound, method="unembedding")
        sums = cross_entropy_sums(x_BLD, unembedding_DV, batch_BL["targets"], chunk)
        return jnp.stack([sums["loss"], sums["tokens"]])

    as_given, rows = None, batch_sharding(mesh)
    summing = jax.jit(
        sum_batch,
        in_shardings=(as_given, as_given, rows),
        out_shardings=replicated(mesh),
    )
    return on_mesh(mesh, jax.jit(tabulate)), on_mesh(mesh, summing)


def _figures(nats: float, tokens: float, text_bytes: int) -> dict[str, float]:
    loss = nats / tokens
    with np.errstate(over="ignore"):
        perplexity = float(np.exp(loss))
    return {
        "loss": float(loss),
        "perplexity": perplexity,
        "bits_per_byte": float(nats / math.log(2) / text_bytes),
        "tokens": int(tokens),
    }
