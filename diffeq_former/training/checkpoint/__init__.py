"""Checkpoints of a run: the latest few, and the few of lowest validation loss.

A checkpoint holds the whole TrainState. Nothing else changes during a run: the next
batch and all random keys are functions of the seed and the state's counters, and the
config, the tokenizer and `dataset.json` are stored in the run directory. Parameters and
the rest are separate items, so that tools can read the parameters alone.

Saving is asynchronous and atomic. Orbax writes a folder STEP.partial; when it is
complete and has its checksums it is renamed to STEP, and only then are old checkpoints
removed. So a checkpoint that does not match its checksums, or has none, is damaged.

Retention is not left to Orbax's CheckpointManager (version 0.12): it cannot start if
the metrics of any checkpoint are damaged, and such runs can be resumed here.
"""

from diffeq_former.training.checkpoint.restoring import load_params, restore_latest
from diffeq_former.training.checkpoint.saving import (
    Checkpoints,
    check_path,
    saved_steps,
)

__all__ = ["Checkpoints", "check_path", "load_params", "restore_latest", "saved_steps"]
