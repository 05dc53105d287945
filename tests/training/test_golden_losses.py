"""Twenty steps of training, against losses that are stored in golden_losses.json.

They pin down what no closed form gives: initialisation, schedule, clipping, weight
decay, dropout, micro-batches and Adam together. After a change that is meant to move
them, write them anew and say in the commit why they moved:

    python -m pytest tests/training/test_golden_losses.py --write_golden_losses
"""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from cases import TINY, mesh_of

from diffeq_former.config import Config, OptimizerConfig, TrainingConfig
from diffeq_former.distributed.mesh import shard_batch
from diffeq_former.training import state
from diffeq_former.training.step import make_train_step

NUM_STEPS = 20
STORED = Path(__file__).with_name("golden_losses.json")
MODELS = {
    f"{block}, {weights}": dataclasses.replace(
        TINY, block=block, weights=weights, solver=solver, num_layers=2, dropout=0.1
    )
    for block in ("gpt", "llama")
    for weights, solver in (("hypernetwork", "euler"), ("layer_table", "lie_trotter"))
}


def batch_of_step(step: int, vocab_size: int, num_sequences: int = 8, length: int = 8):
    """Counts up from other numbers in each step, in strides of 1 to 4."""
    n = np.arange(num_sequences)[:, None]
    tokens = (7 * n + 13 * step + (1 + n % 4) * np.arange(length + 1)) % vocab_size
    tokens = tokens.astype(np.int32)
    return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}


def losses_of(name: str) -> list[float]:
    config = Config(
        model=MODELS[name],
        # A large eps: the sign of a gradient that is only rounding errors is no update.
        optimizer=OptimizerConfig(learning_rate=0.02, warmup_fraction=0.2, eps=1e-4),
        training=TrainingConfig(
            batch_size=8, per_device_batch_size=4, num_steps=NUM_STEPS, loss_chunk=4
        ),
    )
    mesh = mesh_of()
    current, losses = state.create(config, mesh), []
    train_step = make_train_step(config, mesh)
    for step in range(NUM_STEPS):
        batch = shard_batch(batch_of_step(step, config.model.vocab_size), mesh)
        current, metrics = train_step(current, batch)
        losses.append(float(metrics["loss"]))
    return losses


@pytest.mark.parametrize("name", MODELS)
def test_losses_are_the_stored_ones(name, request):
    losses = losses_of(name)
    assert losses[-1] < 0.8 * losses[0]
    if request.config.getoption("write_golden_losses"):
        stored = json.loads(STORED.read_text()) if STORED.exists() else {}
        STORED.write_text(json.dumps(stored | {name: losses}, indent=1) + "\n")
    assert losses == pytest.approx(json.loads(STORED.read_text())[name], rel=1e-5)
