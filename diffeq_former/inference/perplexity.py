"""Perplexity of a model on a held-out split. B batch, L length."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from tqdm import tqdm

from diffeq_former.config import Config
from diffeq_former.data.dataset import Dataset
from diffeq_former.data.mixture import Data
from diffeq_former.data.pipeline import validation_batches
from diffeq_former.distributed.mesh import (
    batch_sharding,
    check_length_fits,
    local_sequences,
    mesh_hardware,
    num_batch_shards,
    on_mesh,
    replicated,
    rows_at_once,
    shard_batch,
)
from diffeq_former.inference import early_exit
from diffeq_former.inference.adaptive_steps import integrate
from diffeq_former.models.loss import NO_TARGET, cross_entropy_sums
from diffeq_former.models.transformer import Transformer
from diffeq_former.ode.adaptive import AdaptiveSolver

SPLIT = "validation"


class Evaluate(Protocol):
    """Evaluation function that `make_evaluate` returns."""

    def __call__(
        self, params: dict, *, should_stop: Callable[[], bool] = ...
    ) -> dict[str, float] | None:
        """Compute the metrics of the whole validation split.

        Args:
          params: Parameters of the model, on the mesh's devices or the host.
          should_stop: Called before each batch.

        Returns:
          `loss` (nats per token), `perplexity` (its exponential), `bits_per_byte`
          (total nats / ln 2 / bytes of the split's text), `tokens` (number of predicted
          tokens), with adaptive steps `num_evaluations` (of the vector field, mean over
          the batches) and with early exit `mean_num_steps` (over the tokens). For a
          mixture, these are as if each source had its weight's share of the tokens, and
          those of each source follow, as `loss/NAME`. None if `should_stop` returned
          True.
        """


def make_evaluate(
    config: Config,
    dataset: Data,
    mesh: Mesh,
    solver: AdaptiveSolver | None = None,
    exit_threshold: float = 0.0,
) -> Evaluate:
    """Return the evaluation function of one model, sharded over the mesh.

    A batch is as large as a micro-batch of training, rounded up to a multiple of the
    number of shards. The metrics do not depend on the batch size, as sums are taken
    over the whole split before they are divided. With an adaptive solver, whose steps
    are those of a batch, they do depend on it. With `exit_threshold`, tokens exit early
    (early_exit.py).

    Raises:
      UserError: If the mesh axis `sequence` does not divide the sequence length. The
        function raises it if the model has no weights at the times of a solver, or if
        its adaptive steps become too many.
    """
    check_length_fits(config.training, mesh, dataset.seq_len)
    sources, shards = dataset.sources, num_batch_shards(mesh)
    largest = max(source.split(SPLIT).rows for source in sources)
    most = min(largest, rows_at_once(config.training, mesh))
    batch_size = -(-most // shards) * shards
    process_rows = local_sequences(mesh, batch_size)
    tabulate, sum_batch = make_programs(config, mesh, solver, exit_threshold)

    def sums_of(source: Dataset, params: dict, table: dict, should_stop):
        num_batches = -(-source.split(SPLIT).rows // batch_size)
        batches = validation_batches(
            source, batch_size=batch_size, split=SPLIT, positions=process_rows
        )
        sums = previous = np.zeros(3)
        with tqdm(batches, SPLIT, num_batches, leave=False, disable=None) as bar:
            for batch in bar:
                if should_stop():
                    return None
                current = sum_batch(params, table, shard_batch(batch, mesh))
                # Fetch the previous batch's sums while the device computes this one.
                sums = sums + jax.device_get(previous)
                previous = current
        sums = sums + jax.device_get(previous)
        return _Sums(*sums, num_batches, source.split(SPLIT).text_bytes)

    def evaluate(params: dict, *, should_stop=lambda: False):
        table, found = tabulate(params), {}
        for source in sources:
            sums = sums_of(source, params, table, should_stop)
            if sums is None:
                return None
            found[source.name] = sums
        options = (solver is not None, exit_threshold > 0)
        metrics = _metrics(found, dataset.weights, *options)
        if solver is not None:
            solver.check(reached_end=not math.isnan(metrics["loss"]))
        return metrics

    return evaluate


def make_programs(
    config: Config,
    mesh: Mesh,
    solver: AdaptiveSolver | None = None,
    exit_threshold: float = 0.0,
) -> tuple[Callable, Callable]:
    """Return params -> table, and (params, table, batch) -> float32 sums, both jitted.

    The sums are those of the losses, of the tokens, and of the evaluations of the
    vector field by an adaptive solver, or of the steps of tokens that exit early. With
    an adaptive solver, the table is empty.
    """
    model = Transformer(config.model.for_inference(), hardware=mesh_hardware(mesh))
    chunk, softcap = config.training.loss_chunk, config.model.logit_softcap

    def tabulate(params: dict):
        if solver is not None:
            return {}
        return model.apply({"params": params}, method="tabulate")

    def hidden(bound: dict, table: dict, tokens_BL: jax.Array, has_target_BL):
        if solver is None and not exit_threshold:
            return model.apply(bound, tokens_BL, table=table, method="hidden"), 0
        params = bound["params"]
        if solver is not None:
            x_BLD, num_steps, _ = integrate(model, params, tokens_BL, solver)
        else:
            given = (model, params, table, tokens_BL, exit_threshold)
            x_BLD, steps_BL = early_exit.integrate(*given)
            num_steps = steps_BL.sum(where=has_target_BL)
        return model.apply(bound, x_BLD, method="normalise"), num_steps

    def sum_batch(params: dict, table: dict, batch_BL: dict) -> jax.Array:
        bound, targets_BL = {"params": params}, batch_BL["targets"]
        has_target_BL = targets_BL != NO_TARGET
        x_BLD, num_steps = hidden(bound, table, batch_BL["inputs"], has_target_BL)
        unembedding_DV = model.apply(bound, method="unembedding")
        sums = cross_entropy_sums(x_BLD, unembedding_DV, targets_BL, chunk, softcap)
        return jnp.stack([sums["loss"], sums["tokens"], jnp.float32(num_steps)])

    as_given, rows = None, batch_sharding(mesh)
    summing = jax.jit(
        sum_batch,
        in_shardings=(as_given, as_given, rows),
        out_shardings=replicated(mesh),
    )
    return on_mesh(mesh, jax.jit(tabulate)), on_mesh(mesh, summing)


@dataclasses.dataclass(frozen=True)
class _Sums:
    """Sums over the validation split of a dataset."""

    nats: float
    tokens: float
    steps: float  # evaluations of the vector field, or steps of tokens that exit early
    num_batches: float
    text_bytes: float

    def metrics(self, has_evaluations: bool, has_exits: bool) -> dict[str, float]:
        loss = self.nats / self.tokens
        with np.errstate(over="ignore"):
            perplexity = float(np.exp(loss))
        metrics = {
            "loss": float(loss),
            "perplexity": perplexity,
            "bits_per_byte": float(self.nats / math.log(2) / self.text_bytes),
            "tokens": round(self.tokens),
        }
        if has_evaluations:
            metrics["num_evaluations"] = float(self.steps / self.num_batches)
        if has_exits:
            metrics["mean_num_steps"] = float(self.steps / self.tokens)
        return metrics


def _metrics(
    found: dict[str, _Sums], weights: Sequence[float], *options: bool
) -> dict[str, float]:
    """Return the metrics of one dataset, or of a mixture and each of its sources."""
    sums = list(found.values())
    if len(sums) == 1:
        return sums[0].metrics(*options)
    metrics = _mix(sums, weights).metrics(*options)
    for name, one in found.items():
        own = one.metrics(*options).items()
        metrics |= {f"{metric}/{name}": value for metric, value in own}
    return metrics


def _mix(sums: list[_Sums], weights: Sequence[float]) -> _Sums:
    """Return the sums of all sources, scaled to the shares that their weights are."""
    tokens = sum(one.tokens for one in sums)
    scales = [
        tokens * weight / sum(weights) / one.tokens
        for weight, one in zip(weights, sums, strict=True)
    ]
    columns = zip(*map(dataclasses.astuple, sums), strict=True)
    return _Sums(*(np.dot(scales, column) for column in columns))
