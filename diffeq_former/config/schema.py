"""Every setting with its default, as frozen dataclasses."""

import dataclasses
from typing import Literal

from diffeq_former.ode.solvers import is_splitting

# Policies that save the weights which a step generates for itself.
SAVE_WEIGHTS = ("save_weights", "save_attention_and_weights")
RematPolicy = Literal[
    "none", "full", "dots", "save_attention", "save_terms", *SAVE_WEIGHTS
]


@dataclasses.dataclass(frozen=True)
class Stabilisers:
    """What keeps the state bounded beside the field, see models/stabilisers.py."""

    residual: float = 1.0  # x <- residual * x + step * term: 1 on, 0 off
    # Of each term's input; of the state after it; of neither.
    norm: Literal["pre", "post", "none"] = "pre"


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """What is computed. Zero means "derived", see the property of the same idea."""

    block: Literal["gpt", "llama"] = "gpt"  # the vector field's two terms
    # Where the weights at time t come from.
    weights: Literal["hypernetwork", "layer_table", "shared"] = "hypernetwork"
    # How depth is integrated.
    solver: Literal["euler", "lie_trotter", "strang", "midpoint", "heun", "rk4"] = (
        "euler"
    )
    num_layers: int = 12  # steps of the solver over the depth interval
    d_model: int = 768  # width of the state
    num_heads: int = 12  # of attention; each has d_model / num_heads entries
    num_kv_heads: int = 0  # 0: num_heads; fewer: grouped-query attention (llama)
    d_ff: int = 0  # width of the feed-forward; 0: 4 * d_model
    vocab_size: int = 50257  # token ids; GPT-2's tokenizer has as many
    max_len: int = 1024  # longest sequence, in tokens
    tied_head: bool = False  # llama: the head is the token embedding, as gpt's always
    horizon: float = 0.0  # length of the depth interval; 0: see `interval`
    stabilisers: Stabilisers = Stabilisers()  # norms of terms, residual connections
    # The hypernetwork (paper, eq. 6 and appendices A and D.2).
    time_embed_dim: int = 96  # E: width of u(t), rank of the weights' motion in depth
    num_frequencies: int = 128  # S: sinusoids; features(t) has 2S + 1 entries
    time_scale: float = 1000.0  # the fastest sinusoid is sin(time_scale * t)
    time_pieces: int = 0  # W(t) is constant on so many parts of depth; 0: a curve
    time_mlp: Literal["per_weight", "shared"] = "per_weight"  # shared: one for all
    # unit: u(t) has length 1; authors: as released.
    initialization: Literal["unit", "authors"] = "unit"
    # tabulated: once per optimizer step; per_step: inside the scan over depth.
    generate_weights: Literal["tabulated", "per_step"] = "tabulated"
    # Numerics.
    # Of activations and tables; parameters are float32.
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    norm_eps: float = 1e-5  # added to the variance in norms
    rope_base: float = 10000.0  # llama: the slowest rotation is about 1 / rope_base
    # Llama for sequences longer than it was first trained on, see models/positions.py.
    rope_scaling: Literal["none", "linear", "llama3"] = "none"
    rope_factor: float = 1.0  # by which rotations are slowed
    rope_original_len: int = 8192  # llama3: the longest sequence before
    rope_low_turns: float = 1.0  # llama3: fewer turns over that length are slowed
    rope_high_turns: float = 4.0  # llama3: more turns are kept
    chain_norms: bool = False  # llama as released, see models/llama.py
    # The kernel over whole sequences: cudnn on NVIDIA GPUs, splash on TPUs; auto takes
    # the fused one where there is one, and xla elsewhere.
    attention_implementation: Literal["auto", "xla", "cudnn", "splash"] = "auto"
    # Regularisation and memory.
    dropout: float = 0.0  # on the embeddings and on each term of the field
    attention_dropout: float = 0.0  # on the attention probabilities
    remat: RematPolicy = "none"  # what the backward pass computes again
    document_masking: bool = False  # no attention across end-of-text tokens
    end_of_text: int = -1  # its token id; filled in from the dataset
    # Adapters of low rank on linear maps of a layer_table, see models/lora.py.
    lora_rank: int = 0  # 0: none
    lora_alpha: float = 16.0  # what they add is times alpha / rank
    lora_dropout: float = 0.0  # on what they see
    lora_targets: str = ""  # names of linear maps, as qkv,ff_in; empty: all of them

    @property
    def head_dim(self) -> int:
        return self.d_model // self.num_heads

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads

    @property
    def ff_dim(self) -> int:
        return self.d_ff or 4 * self.d_model

    @property
    def interval(self) -> float:
        """The depth interval: [0, 1] as in the paper, or one unit a layer.

        A table of layers and the splittings are discrete transformers, whose
        steps have length 1; discretising at other depths keeps the interval.
        """
        discrete = self.weights == "layer_table" or is_splitting(self.solver)
        return self.horizon or (float(self.num_layers) if discrete else 1.0)

    @property
    def step_size(self) -> float:
        return self.interval / self.num_layers

    def at_depth(self, num_layers: int) -> "ModelConfig":
        """The same continuous model, integrated in another number of steps."""
        return dataclasses.replace(self, num_layers=num_layers, horizon=self.interval)

    def for_inference(self) -> "ModelConfig":
        """The same model without what only training has, or spares memory there."""
        return dataclasses.replace(
            self, generate_weights="tabulated", remat="none", attention_dropout=0.0
        )

    def without_adapters(self) -> "ModelConfig":
        plain = {f.name: f.default for f in dataclasses.fields(self)}
        names = ("lora_rank", "lora_alpha", "lora_dropout", "lora_targets")
        return dataclasses.replace(self, **{name: plain[name] for name in names})


@dataclasses.dataclass(frozen=True)
class DataConfig:
    path: str = ""  # folder that tools/prepare_data.py wrote
    num_workers: int = 0  # processes that read; 0: in the training process
    timeout: float = 600.0  # seconds without a batch that end the run


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """AdamW, its schedule, and a learning-rate multiplier for each parameter group."""

    learning_rate: float = 6e-4  # at its peak
    # After the warm-up; see training/optimizer.py.
    schedule: Literal["constant", "linear", "cosine", "wsd"] = "cosine"
    warmup_fraction: float = 0.01  # of the steps, linear from 0
    decay_fraction: float = 0.2  # of the steps: the last part of wsd
    final_fraction: float = 0.1  # of learning_rate, where cosine, linear and wsd end
    b1: float = 0.9  # decay of Adam's mean of gradients
    b2: float = 0.95  # decay of Adam's mean of squared gradients
    eps: float = 1e-8  # added to the root of the latter
    mu_dtype: Literal["float32", "bfloat16"] = "float32"  # of the mean
    nu_dtype: Literal["float32", "bfloat16"] = "float32"  # of the mean of squares
    factored_bank: bool = False  # mean of squares of the bank: by rows and columns only
    weight_decay: float = 0.1  # times the learning rate, each step
    # What decays: matrices; embeddings too, as released; all parameters.
    decay_mask: Literal["matrices", "embeddings", "all"] = "matrices"
    clip_norm: float = 1.0  # 0: no clipping
    bank_multiplier: float = 1.0  # of F_e in W(t) = sum_e u_e(t) F_e + B, and of f_e
    base_multiplier: float = 1.0  # of B, and of the weights of the other sources
    time_mlp_multiplier: float = 1.0  # of the maps from features(t) to u(t)
    norm_multiplier: float = 1.0  # of norms, at all times and at the end
    embedding_multiplier: float = 1.0  # of tokens and positions
    head_multiplier: float = 1.0  # of the untied head (llama)
    lora_multiplier: float = 1.0  # of adapters


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    num_steps: int = 20000  # optimizer steps
    batch_size: int = 512  # sequences an optimizer step, over all devices
    # Fewer than a device's share of the batch: gradients are accumulated.
    per_device_batch_size: int = 0  # sequences that it computes at once; 0: its share
    # Sampled anew each optimizer step unless fixed, so that W(t) is trained at all t,
    # see ode/grid.py.
    depth_grid: Literal["fixed", "jittered", "shifted"] = "fixed"
    depth_steps: str = ""  # as 6,8,8,12: one drawn each step; else model.num_layers
    depth_steps_from: float = 0.0  # of num_steps: before this part nothing is drawn
    loss_chunk: int = 256  # positions of each sequence whose logits exist at once
    z_loss: float = 0.0  # weight of log(Z)^2
    # Weights of what is added to the loss, and a metric also where they are 0.
    transport_cost: float = 0.0  # of |dx/dt|^2 over depth, see models/transport.py
    smoothness: float = 0.0  # of |dW/dt|^2 over depth, see training/smoothness.py
    max_bad_steps: int = 10  # in a row, not finite or spikes: training has diverged
    spike_factor: float = 0.0  # a loss above it times the usual is a spike; 0: none is
    rollbacks: int = 0  # times a diverged run goes back to a checkpoint; then it ends
    log_every: int = 10  # steps between lines of metrics
    eval_every: int = 1000  # steps between passes over the validation split
    checkpoint_every: int = 1000  # steps
    keep_latest: int = 2  # checkpoints
    keep_best: int = 1  # checkpoints, by validation loss
    sample_every: int = 0  # steps between generated samples; 0: none
    sample_prompt: str = "The"  # what they continue


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """How many devices an axis has; one of them -1: all that are left."""

    data: int = -1  # copies of the parameters; each sees its own rows
    fsdp: int = 1  # parameters and optimizer state are cut; each sees its own rows
    sequence: int = 1  # sequences are cut; keys and values are gathered
    tensor: int = 1  # heads, feed-forward and vocabulary are cut


@dataclasses.dataclass(frozen=True)
class ProfileConfig:
    """A trace of some steps, see training/profiling.py."""

    start_step: int = 10  # the first of them; the run's first, which compiles, is 1
    num_steps: int = 0  # that are recorded; 0: none


@dataclasses.dataclass(frozen=True)
class FinetuneConfig:
    """What a run starts from, see finetuning/base.py."""

    base: str = ""  # folder of a run, of which the latest checkpoint counts; "": none
    num_steps: int = 0  # of the solver, which become layers; 0: the model stays its own
    train_embeddings: bool = False  # with adapters, also both ends of depth


@dataclasses.dataclass(frozen=True)
class Config:
    seed: int = 0  # of the parameters, the order of the data and the dropout
    # Of weights and states, see docs/analysis.md; from 5 on below 1 % of the time.
    analysis_every: int = 0  # steps between analyses while training; 0: none
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    mesh: MeshConfig = MeshConfig()
    profile: ProfileConfig = ProfileConfig()
    finetune: FinetuneConfig = FinetuneConfig()

    @property
    def depths(self) -> tuple[int, ...]:
        """The numbers of solver steps that training draws from, with their repeats."""
        given = self.training.depth_steps
        return tuple(map(int, given.split(","))) if given else (self.model.num_layers,)

    def at_depth(self, num_layers: int) -> "Config":
        """See `ModelConfig.at_depth`; with one depth nothing changes."""
        if num_layers == self.model.num_layers:
            return self
        return dataclasses.replace(self, model=self.model.at_depth(num_layers))

    @property
    def all_depths(self) -> set[int]:
        """All numbers of solver steps that training takes, drawn or not."""
        return {self.model.num_layers, *self.depths}

    @property
    def deepest(self) -> "Config":
        """Of the costliest steps of training, which the memory must hold."""
        return self.at_depth(max(self.all_depths))
