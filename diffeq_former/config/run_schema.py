"""Settings of a run beside its model and training: data, mesh, profile, base run."""

import dataclasses

from diffeq_former.config.ranges import AxisSize, CountOrZero, Seconds


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The dataset and how it is read."""

    path: str = ""  # dataset folder, written by tools/prepare_data.py
    timeout: Seconds = 600.0  # to wait for a batch before the run fails


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Number of devices along each mesh axis; one may be -1: all remaining devices."""

    data: AxisSize = -1  # shards the batch, replicates the parameters
    fsdp: AxisSize = 1  # shards the batch, the parameters and the optimizer state
    sequence: AxisSize = 1  # shards sequences; keys and values are gathered
    tensor: AxisSize = 1  # shards heads, feed-forward width and vocabulary


@dataclasses.dataclass(frozen=True)
class ProfileConfig:
    """A profiler trace of some training steps, see training/profiling.py."""

    start_step: CountOrZero = 10  # first step to record; step 1 includes compilation
    num_steps: CountOrZero = 0  # number of steps to record; 0: no trace


@dataclasses.dataclass(frozen=True)
class FinetuneConfig:
    """The run that fine-tuning starts from, see finetuning/base.py."""

    # Folder of the base run, whose latest checkpoint is loaded; "": no fine-tuning.
    base: str = ""
    # Solver steps into which the base is discretised, each of which becomes a layer; 0:
    # the model stays as it is.
    num_steps: CountOrZero = 0
    # With adapters: also train embeddings, final norm and head.
    train_embeddings: bool = False
