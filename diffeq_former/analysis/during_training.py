"""Spectral and trajectory metrics that are cheap enough to log during training.

B batch, L sequence length, D model width, T grid steps, P steps that are examined.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from diffeq_former.analysis.spectra import (
    attention_names,
    attention_products,
    eigenvalues,
    positive_share,
)
from diffeq_former.analysis.trajectory import describe
from diffeq_former.config import Config, ModelConfig
from diffeq_former.data.mixture import Data
from diffeq_former.data.pipeline import validation_batches
from diffeq_former.distributed.mesh import num_batch_shards, on_mesh, replicated
from diffeq_former.models.transformer import Transformer

DEPTHS = ("first", "middle", "last")  # which solver steps


def make_analysis(
    config: Config, dataset: Data, mesh: Mesh
) -> Callable[[dict], dict[str, float]]:
    """Return `analyse(params)`, which analyses the first validation sequence.

    Of a mixture, that is one of its first source. It computes in float32 on the mesh,
    over the model's own number of steps. Only the attention kernels of three steps and
    the states of the sequence are copied to the host.

    Returns:
      A function from parameters to metrics, which all processes must call: for `qk`
      and `ov`, the share of eigenvalues with positive real part and the largest
      magnitude, medians over heads, at the first, middle and last step; for the
      trajectory, means over tokens and time of `norm`, `speed` and `angle`, the final
      `effective_rank`, and `cost_over_least`, see trajectory.py. The metrics are empty
      if a weight or a state is not finite.
    """
    c = dataclasses.replace(
        config.model.for_inference(), dtype="float32", attention_implementation="xla"
    )
    first = validation_batches(dataset.sources[0], batch_size=1)
    [tokens_L] = next(first)["inputs"]
    # Every batch shard holds the same sequence.
    tokens_BL = np.tile(tokens_L, (num_batch_shards(mesh), 1))
    compute = jax.jit(
        lambda params: _states_and_weights(c, params, tokens_BL),
        out_shardings=replicated(mesh),
    )
    compute = on_mesh(mesh, compute)

    def analyse(params: dict) -> dict[str, float]:
        states_TLD, weights_P = jax.device_get(compute(params))
        if not all(
            np.isfinite(x).all() for x in jax.tree.leaves((states_TLD, weights_P))
        ):
            return {}
        return _of_weights(c, weights_P) | _of_states(states_TLD, c.interval)

    return analyse


def _states_and_weights(c: ModelConfig, params: dict, tokens_BL) -> tuple:
    """Return the first sequence's T + 1 states and three steps' attention weights."""
    model, variables = Transformer(c), {"params": params}
    table = model.apply(variables, method="tabulate")
    positions_BL = jnp.broadcast_to(
        jnp.arange(tokens_BL.shape[1])[None], tokens_BL.shape
    )
    first_BLD = model.apply(
        variables, method=lambda module: module.embedding(tokens_BL, positions_BL)
    )
    _, sown = model.apply(
        variables, tokens_BL, table=table, method="hidden", mutable=["intermediates"]
    )
    [after_TBLD] = sown["intermediates"]["depth"]["state"]
    states_TLD = jnp.concatenate([first_BLD[None, 0], after_TBLD[:, 0]])
    steps = np.array([0, c.num_layers // 2, c.num_layers - 1])
    weights_P = {
        name: {"kernel": table[name]["kernel"][steps, -1]}
        for name in attention_names(c)
    }
    return states_TLD, weights_P


def _of_weights(c: ModelConfig, weights_P: dict) -> dict[str, float]:
    metrics = {}
    for name, factors in attention_products(c, weights_P).items():
        found = eigenvalues(factors)
        for metric, per_head in (
            ("positive_share", positive_share(found)),
            ("largest_eigenvalue", np.abs(found).max(-1)),
        ):
            medians_P = np.median(per_head, axis=-1)
            for depth, median in zip(DEPTHS, medians_P, strict=True):
                metrics[f"{name}_{metric}/{depth}"] = float(median)
    return metrics


def _of_states(states_TLD: np.ndarray, interval: float) -> dict[str, float]:
    found = describe(states_TLD, np.linspace(0, interval, len(states_TLD)))
    with np.errstate(divide="ignore", invalid="ignore"):
        excess_L = found["cost"] / found["least_cost"]
    return {
        **{name: _mean(found[name]) for name in ("norm", "speed", "angle")},
        "effective_rank": float(found["effective_rank"][-1]),
        "cost_over_least": _mean(excess_L),
    }


def _mean(values: np.ndarray) -> float:
    """Average the finite values; NaN if there are none (angles of a single step)."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")
