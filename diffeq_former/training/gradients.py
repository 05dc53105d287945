"""Gradients of the loss over a batch, accumulated with respect to the weight table.

The loss of a batch depends on the weight source only through the table of generated
weights. So the source is evaluated once, micro-batches are differentiated with
respect to the table, and the summed gradient is pulled back through the source once.
Each device sums the gradients of its own sequences; the sums are reduced across
devices once, at the end. Without micro-batches, the gradients of a step's weights are
reduced during the backward pass.

Shape suffixes: B batch, L length, D width, V vocabulary, M micro-batches, N shards of
the batch axis.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from diffeq_former.config import Config, ModelConfig
from diffeq_former.hardware import Hardware
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.loss import NO_TARGET, cross_entropy_objective
from diffeq_former.models.partition import (
    apply_per_shard,
    constrain_weights,
    copy_per_shard,
    map_shards,
    split_by_shard,
    sum_over_shards,
)
from diffeq_former.models.transformer import Transformer, outer_params
from diffeq_former.models.transport import COSTS, cost
from diffeq_former.ode.grid import Grid
from diffeq_former.training import smoothness
from diffeq_former.training.bank_gradient import BankGradient
from diffeq_former.training.parts import Parts, merge, partition


def loss_and_gradients(
    config: Config,
    params: Parts,
    batches_MBL: dict,
    key,
    grid: Grid,
    hardware: Hardware,
) -> tuple[dict, Parts]:
    """Return the losses of a batch and the gradients of the trainable parameters.

    Args:
      config: The model and training settings.
      params: The model's parameters.
      batches_MBL: Arrays `inputs` and `targets` [M, B, L], and `sequences` [M, B], the
        numbers of the sequences in the whole batch.
      key: The random key of the dropout masks.
      grid: The depth grid.
      hardware: What the program is compiled for.

    Returns:
      A dictionary of means over all positions that have a target: `loss`, the
      -log p(target) in nats; `z_loss`, its weight times the squared log normaliser;
      `transport_cost` (models/transport.py). It also has `tokens`, the number of these
      positions, and `smoothness` (smoothness.py) if the table has trainable kernels.

      The gradients of loss + z_loss + the weighted transport cost and smoothness. The
      gradient of a bank is a BankGradient if the weights were tabulated.
    """
    variables, constants, pull_back = prepare(config, params, grid)
    model = Transformer(config.model, train=True, hardware=hardware)

    def sums_and_gradients(params, batch_BL):
        def objective(variables):
            whole = merge(variables, constants)
            return _objective(config, model, whole, batch_BL, key, grid)

        at = variables | {"params": params}
        gradients, sums = jax.grad(objective, has_aux=True)(at)
        return sums, jax.tree.map(lambda g: g.astype(jnp.float32), gradients)

    sums, gradients = _sum_of_batch(
        config.model, sums_and_gradients, variables["params"], batches_MBL
    )
    tokens = sums["tokens"]
    losses = {
        "loss": sums["loss"] / tokens,
        "z_loss": config.training.z_loss * sums["log_z_squared"] / tokens,
        "tokens": tokens,
        "transport_cost": sums["transport_cost"] / tokens,
    }
    gradients = jax.tree.map(lambda g: g / tokens, gradients)
    if smoothness.is_known(table := variables.get("table", {})):
        added = smoothness.add(config, table, grid, gradients["table"])
        losses["smoothness"], gradients["table"] = added
    return losses, pull_back(gradients)


class Differentiation(NamedTuple):
    """What micro-batches are differentiated with respect to, and the way back."""

    variables: dict  # "params" and, unless weights are generated per step, "table"
    constants: dict  # the frozen ones, in trees of the same names
    pull_back: Callable[[dict], Parts]  # gradients of variables -> of the parameters


def prepare(config: Config, params: Parts, grid: Grid) -> Differentiation:
    """Generate the weight table, if the config has weights tabulated."""
    c = config.model
    if c.generate_weights == "per_step":
        trainable = params.replace(frozen={}).merge()
        constants = {"params": params.frozen}
        return Differentiation(
            {"params": trainable}, constants, lambda g: partition(config, g["params"])
        )

    def apply(params: Parts, method: str):
        return Transformer(c).apply({"params": params.merge()}, grid, method=method)

    def tabulate(weights: dict):
        generated = apply(params.replace(rest={"weights": weights}), "tabulate")
        table = partition(config, {"weights": generated})
        return tuple(x.get("weights", {}) for x in (table.rest, table.frozen))

    table, pull_back_table, frozen_table = jax.vjp(
        tabulate, params.rest["weights"], has_aux=True
    )

    def pull_back(gradients: dict) -> Parts:
        flat = jax.tree.map(
            lambda g, w: g.astype(w.dtype).reshape(-1, *w.shape[2:]),
            gradients["table"],
            table,
        )
        flat = constrain_weights(BLOCKS[c.block].weight_specs(c), flat)
        cotangents = jax.tree.map(lambda g, w: g.reshape(w.shape), flat, table)
        u = apply(params, "coefficients") if params.banks else {}
        bank_gradients = {
            name: BankGradient(u[name], flat[name]["kernel"]) for name in params.banks
        }
        rest = gradients["params"] | {"weights": pull_back_table(cotangents)[0]}
        return Parts(rest=rest, banks=bank_gradients, frozen={})

    variables = {"params": outer_params(params.rest), "table": table}
    constants = {"params": outer_params(params.frozen), "table": frozen_table}
    return Differentiation(variables, constants, pull_back)


def _objective(
    config: Config, model: Transformer, variables: dict, batch_BL: dict, key, grid: Grid
) -> tuple[jax.Array, dict]:
    """Return the objective summed over tokens, and its terms (unweighted)."""
    c, params, rngs = config.training, variables["params"], {"dropout": key}
    tokens_BL, targets_BL = batch_BL["inputs"], batch_BL["targets"]
    sequences_B = batch_BL["sequences"]

    def embed(params, tokens_BL, sequences_B):
        return model.apply(
            {"params": params},
            tokens_BL,
            sequences_B=sequences_B,
            method="embed",
            rngs=rngs,
        )

    def sums_of_targets(params, x_BLD, targets_BL):
        unembedding_DV = model.apply({"params": params}, method="unembedding")
        objective, sums = cross_entropy_objective(
            x_BLD,
            unembedding_DV,
            targets_BL,
            c.loss_chunk,
            c.z_loss,
            config.model.logit_softcap,
        )
        return jax.tree.map(lambda x: x[None], sums | {"objective": objective})

    params_N = copy_per_shard(params, config.model.reduce_dtype)
    embedded_BLD = apply_per_shard(embed, params_N, tokens_BL, sequences_B)
    x_BLD, sown = model.apply(
        {"params": params},
        tokens_BL,
        embedded_BLD=embedded_BLD,
        table=variables.get("table"),
        grid=grid,
        sequences_B=sequences_B,
        method="hidden",
        rngs=rngs,
        mutable=[COSTS],
    )
    sums_N = apply_per_shard(sums_of_targets, params_N, x_BLD, targets_BL)
    sums = {name: x_N.sum() for name, x_N in sums_N.items()}
    objective = sums.pop("objective")
    cost_BL = jnp.where(targets_BL != NO_TARGET, cost(sown), 0.0)
    sums["transport_cost"] = cost_BL.sum()
    if c.transport_cost:
        objective += c.transport_cost * sums["transport_cost"]
    return objective, sums


def _sum_of_batch(c: ModelConfig, function: Callable, params: dict, batches_MBL: dict):
    """Return the sum of function(params, batch_BL) over micro-batches.

    Args:
      c: The model settings.
      function: Returns sums and gradients of a micro-batch.
      params: Embeddings, head and final norm, which devices gather once.
      batches_MBL: The micro-batches.
    """
    if len(batches_MBL["inputs"]) == 1:
        return function(params, jax.tree.map(lambda x_MBL: x_MBL[0], batches_MBL))
    if c.generate_weights == "per_step":
        # Here the gradients are those of the banks: too large for one sum per shard.
        return _sum_over(functools.partial(function, params), batches_MBL)
    split_MNBL = jax.tree.map(jax.vmap(split_by_shard), batches_MBL)
    params_N = copy_per_shard(params, c.reduce_dtype)
    of_shards = functools.partial(map_shards(function), params_N)
    sums_N, gradients_N = _sum_over(of_shards, split_MNBL)
    gradients = sum_over_shards(gradients_N, c.reduce_dtype)
    return sum_over_shards(sums_N, jnp.float32), gradients


def _sum_over(function, batches_MBL: dict):
    """Return sum_m function(micro-batch m), computed sequentially."""
    one = jax.tree.map(lambda x: x[0], batches_MBL)
    zeros = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function, one)
    )

    def add(total, batch):
        return jax.tree.map(jnp.add, total, function(batch)), None

    return jax.lax.scan(add, zeros, batches_MBL)[0]
