"""Settings of a run with their defaults and ranges, as frozen dataclasses.

Those of the model are in model_schema.py.
"""

import dataclasses
from typing import Literal

from diffeq_former.config.model_schema import ModelConfig
from diffeq_former.config.ranges import (
    AxisSize,
    Count,
    CountOrDefault,
    CountOrZero,
    Fraction,
    NonNegative,
    NumSteps,
    Positive,
    Rate,
    Seconds,
    Seed,
)


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The dataset or the mixture of datasets, and how it is read."""

    path: str = ""  # dataset folder, written by tools/prepare_data.py
    mixture: tuple[str, ...] = ()  # several dataset folders, in place of `path`
    # A weight for each dataset of `mixture`: its share of the training sequences, up to
    # a common factor.
    weights: tuple[Positive, ...] = ()
    max_epochs: NonNegative = 0.0  # a run may need of any dataset; 0: no limit
    timeout: Seconds = 600.0  # to wait for a batch before the run fails

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders of all datasets; empty: none is configured."""
        return self.mixture or (self.path,) * bool(self.path)


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
class TrackingConfig:
    """Experiment trackers beside TensorBoard, see docs/training.md."""

    backends: tuple[Literal["wandb", "mlflow"], ...] = ()  # each needs its extra
    project: str = "diffeq_former"  # project of W&B, experiment of MLflow


@dataclasses.dataclass(frozen=True)
class HarnessConfig:
    """Tasks of lm-evaluation-harness while training, see docs/training.md."""

    every: CountOrZero = 0  # steps between evaluations on the tasks; 0: none
    tasks: tuple[str, ...] = ()  # tasks, groups and tags of the harness
    num_fewshot: CountOrDefault = -1  # examples before each question
    limit: CountOrZero = 0  # samples per task, the first ones; 0: all
    batch_size: Count = 16  # texts per batch
    max_new_tokens: CountOrZero = 0  # of an answer; 0: the limit of each task
    task_data: str = ""  # folder with the data of the tasks; "": load from the hub
    include_path: str = ""  # folder of YAML files that define tasks


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


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer, its schedule, and a learning-rate multiplier for each group."""

    # muon: for the kernels of blocks and what generates them, beside AdamW for the
    # rest; weight_space_muon: for generated kernels, see training/muon.py.
    name: Literal["adamw", "muon", "weight_space_muon"] = "adamw"
    learning_rate: Positive = 6e-4  # peak value
    # Shape after the warm-up, see training/optimizer.py.
    schedule: Literal["constant", "linear", "cosine", "wsd"] = "cosine"
    warmup_fraction: Fraction = 0.01  # fraction of the steps, linear from 0
    decay_fraction: Fraction = 0.2  # wsd: fraction of the steps, at the end
    # Final learning rate of cosine, linear and wsd, as a fraction of learning_rate.
    final_fraction: Fraction = 0.1
    b1: Rate = 0.9  # decay rate of Adam's first moment
    b2: Rate = 0.95  # decay rate of Adam's second moment
    eps: Positive = 1e-8  # added to the square root of the second moment
    mu_dtype: Literal["float32", "bfloat16"] = "float32"  # first moment
    nu_dtype: Literal["float32", "bfloat16"] = "float32"  # second moment
    # Decay rate of the running mean of the parameters, which is evaluated, saved and
    # exported in their place; 0: none.
    ema_decay: Rate = 0.0
    # layer_table: how much of the update by the mean of the gradients of all layers is
    # added to the update of each, see training/layer_coupling.py; 0: nothing.
    layer_coupling: NonNegative = 0.0
    # Factor the second moment of the bank into rows and columns, as in Adafactor.
    factored_bank: bool = False
    weight_decay: NonNegative = 0.1  # decoupled: multiplied by the learning rate
    # Parameters that decay: matrices (embeddings included); embeddings only, as in the
    # released code; all.
    decay_mask: Literal["matrices", "embeddings", "all"] = "matrices"
    clip_norm: NonNegative = 1.0  # maximum global norm of the gradient; 0: no clipping
    # Learning-rate multipliers, with W(t) = sum_e u_e(t) F_e + B.
    bank_multiplier: NonNegative = 1.0  # banks F_e of kernels and f_e of biases
    # B, and kernels and biases of other weight sources.
    base_multiplier: NonNegative = 1.0
    time_mlp_multiplier: NonNegative = 1.0  # MLPs from features(t) to u(t)
    norm_multiplier: NonNegative = 1.0  # norms of the blocks and the final norm
    embedding_multiplier: NonNegative = 1.0  # token and position embeddings
    head_multiplier: NonNegative = 1.0  # untied head (llama)
    lora_multiplier: NonNegative = 1.0  # adapters


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """Length of training, batches, losses, divergence, and the intervals of hooks."""

    num_steps: Count = 20000  # optimizer steps
    batch_size: Count = 512  # sequences per optimizer step, over all devices
    # Sequences per device and micro-batch; gradients are accumulated over the
    # micro-batches. 0: a single micro-batch.
    per_device_batch_size: CountOrZero = 0
    # Numbers of solver steps, one of which is sampled for each optimizer step; empty:
    # model.num_layers.
    depth_steps: tuple[NumSteps, ...] = ()
    # Fraction of num_steps that runs with model.num_layers before sampling starts.
    depth_steps_from: Fraction = 0.0
    loss_chunk: Count = 256  # positions per sequence whose logits are in memory at once
    z_loss: NonNegative = 0.0  # weight of log(Z)^2 in the loss
    # Weights of regularisers in the loss; both are logged as metrics also at weight 0.
    transport_cost: NonNegative = 0.0  # of |dx/dt|^2 over depth, models/transport.py
    smoothness: NonNegative = 0.0  # of |dW/dt|^2 over depth, see training/smoothness.py
    # Consecutive steps with a non-finite loss or gradient, or a loss spike, after which
    # training counts as diverged.
    max_bad_steps: Count = 10
    # A loss above spike_factor times its running mean is a spike; 0: no detection.
    spike_factor: NonNegative = 0.0
    rollbacks: CountOrZero = 0  # times that a diverged run returns to a checkpoint
    log_every: Count = 10  # steps between lines of metrics
    eval_every: Count = 1000  # steps between evaluations on the validation split
    checkpoint_every: Count = 1000  # steps between checkpoints
    keep_latest: Count = 2  # number of latest checkpoints to retain
    keep_best: CountOrZero = 1  # number of best ones to retain, by validation loss
    sample_every: CountOrZero = 0  # steps between generated samples; 0: none
    sample_prompt: str = "The"  # prompt of the generated samples


@dataclasses.dataclass(frozen=True)
class Config:
    """The complete configuration of a run."""

    seed: Seed = 0  # of the parameters, the order of the data and dropout
    # Steps between analyses while training, see docs/analysis.md; 0: none.
    analysis_every: CountOrZero = 0
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    mesh: MeshConfig = MeshConfig()
    profile: ProfileConfig = ProfileConfig()
    tracking: TrackingConfig = TrackingConfig()
    harness: HarnessConfig = HarnessConfig()
    finetune: FinetuneConfig = FinetuneConfig()

    @property
    def depths(self) -> tuple[int, ...]:
        """Numbers of solver steps that training samples from, repeats included."""
        return self.training.depth_steps or (self.model.num_layers,)

    def at_depth(self, num_layers: int) -> "Config":
        """Return the config with its model at another depth, see `ModelConfig`."""
        if num_layers == self.model.num_layers:
            return self
        return dataclasses.replace(self, model=self.model.at_depth(num_layers))

    @property
    def all_depths(self) -> set[int]:
        """All numbers of solver steps in training, including the model's own."""
        return {self.model.num_layers, *self.depths}

    @property
    def deepest(self) -> "Config":
        """The config at its largest depth, whose steps need the most memory."""
        return self.at_depth(max(self.all_depths))
