"""Sizes of activations and of their changes, as width, depth and E grow together."""

import dataclasses

import jax
import numpy as np
import pytest
from cases import TINY, mesh_of

from diffeq_former.config import Config, OptimizerConfig, TrainingConfig
from diffeq_former.distributed.mesh import shard_batch
from diffeq_former.models.transformer import Transformer
from diffeq_former.training import state
from diffeq_former.training.step import make_train_step

SMALL = dataclasses.replace(
    TINY,
    parametrization="mup",
    num_layers=2,
    d_model=64,
    d_ff=0,
    num_heads=4,
    vocab_size=16,
)
LARGER = {"d_model": 256, "num_heads": 16, "num_layers": 8, "time_embed_dim": 64}
TOKENS = np.random.default_rng(0).integers(0, SMALL.vocab_size, (16, 9), np.int32)


def sizes(model, optimizer: str) -> dict[str, float]:
    """RMS of the terms at initialisation, and of how much a step changes the logits.

    The learning rate is so low that changes are proportional to it.
    """
    c = OptimizerConfig(
        optimizer, 1e-4, "constant", warmup_fraction=0.0, weight_decay=0.0
    )
    config = Config(model=model, optimizer=c, training=TrainingConfig(batch_size=16))
    batch = {"inputs": TOKENS[:, :-1], "targets": TOKENS[:, 1:]}
    logits = jax.jit(lambda params: Transformer(model).apply(params, batch["inputs"]))
    first = state.create(config, mesh_of())
    before = np.asarray(logits({"params": first.params}))
    step = make_train_step(config, mesh_of())
    new, metrics = step(first, shard_batch(batch, mesh_of()))
    change = np.asarray(logits({"params": new.params})) - before
    return {
        "terms": float(metrics["transport_cost"]) ** 0.5,
        "change": float(np.sqrt(np.square(change).mean())),
    }


@pytest.mark.parametrize(
    ("weights", "optimizer", "block"),
    [
        ("hypernetwork", "adamw", "gpt"),
        ("hypernetwork", "muon", "gpt"),
        ("hypernetwork", "weight_space_muon", "gpt"),
        ("layer_table", "adamw", "llama"),
        ("layer_table", "muon", "gpt"),
    ],
)
def test_larger_models_move_alike(weights, optimizer, block):
    """By 17 times as much in width alone with the standard parametrisation and AdamW.

    What is left of the difference is the share of the time MLPs, which falls with E.
    """
    model = dataclasses.replace(SMALL, weights=weights, block=block)
    small = sizes(model, optimizer)
    large = sizes(dataclasses.replace(model, **LARGER), optimizer)
    assert large["terms"] == pytest.approx(small["terms"], rel=0.1)
    assert large["change"] == pytest.approx(small["change"], rel=0.3)
