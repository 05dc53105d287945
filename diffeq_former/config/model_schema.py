"""Settings of the model with their defaults and ranges, as frozen dataclasses."""

import dataclasses
from typing import Literal

from diffeq_former.config.ranges import (
    Count,
    CountOrZero,
    Factor,
    Fraction,
    NonNegative,
    NumSteps,
    Positive,
    PositiveFraction,
    Rate,
    TokenId,
    check_solver_steps,
)
from diffeq_former.ode.solvers import get_solver, is_splitting

# Policies that save the weights generated inside a step (generate_weights=per_step).
SAVE_WEIGHTS = ("save_weights", "save_attention_and_weights")
RematPolicy = Literal[
    "none", "full", "dots", "save_attention", "save_terms", *SAVE_WEIGHTS
]

NormPlacement = Literal["pre", "post", "none"]
AttentionKernel = Literal["auto", "xla", "blockwise", "cudnn", "splash"]


@dataclasses.dataclass(frozen=True)
class Stabilisers:
    """Residual connections and norms of a step, see models/stabilisers.py."""

    # Residual coefficient r in x <- r * x + h * term; 1: residual connection, 0: none.
    residual: Fraction = 1.0
    # pre: normalise the input of each term; post: the state after each term; none.
    norm: NormPlacement = "pre"


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Architecture and numerics of the model.

    A 0 in num_kv_heads, head_dim, d_ff, horizon or time_segments stands for the value
    of the property `kv_heads`, `head_size`, `ff_dim`, `interval` or `segments`.
    """

    block: Literal["gpt", "llama"] = "gpt"  # kind of attention and feed-forward terms
    # Source of the weights at time t, see models/weight_sources.py.
    weights: Literal["hypernetwork", "layer_table", "shared"] = "hypernetwork"
    # Numerical method that integrates over depth, see ode/solvers.py.
    solver: Literal["euler", "lie_trotter", "strang", "midpoint", "heun", "rk4"] = (
        "euler"
    )
    num_layers: NumSteps = 12  # solver steps over the depth interval
    d_model: Count = 768  # width of the hidden state
    num_heads: Count = 12  # attention heads
    head_dim: CountOrZero = 0  # size of each head; 0: d_model / num_heads
    num_kv_heads: CountOrZero = 0  # llama: for grouped-query attention; 0: num_heads
    d_ff: CountOrZero = 0  # hidden width of the feed-forward term; 0: 4 * d_model
    vocab_size: Count = 50257  # number of token ids; default: GPT-2's tokenizer
    max_len: Count = 1024  # longest sequence, in tokens
    # Positions of tokens; default: a learned table (gpt) or rotary (llama).
    positions: Literal["default", "rotary"] = "default"
    tied_head: bool = False  # tie head and token embedding; always so with a table
    horizon: NonNegative = 0.0  # length of the depth interval; 0: see `interval`
    stabilisers: Stabilisers = Stabilisers()  # norms and residual connections
    # llama: biases of the maps to queries, keys and values, or of all in attention.
    attention_bias: Literal["none", "qkv", "all"] = "none"
    qk_norm: bool = False  # RMS-normalise the queries and keys of each head
    zero_init_output: bool = False  # start linear maps that write to the state at 0
    # Activation of the feed-forward term; default: SiLU (llama), or GELU with a tanh
    # (gpt), which approximates exact_gelu.
    activation: Literal["default", "exact_gelu", "relu_squared"] = "default"
    # Cap c of the logits, which become c * tanh(logits / c); 0: none.
    logit_softcap: NonNegative = 0.0
    # Hypernetwork (paper, eq. 6 and appendices A and D.2).
    time_embed_dim: Count = 96  # E: width of u(t), number of matrices F_e in W(t)
    num_frequencies: Count = 128  # S: frequencies; features(t) has 2S + 1 entries
    time_scale: Positive = 1000.0  # the fastest sinusoid is sin(time_scale * t)
    # Number of equal segments of depth on which W(t) is constant; 0: see `segments`.
    time_segments: CountOrZero = 0
    # What computes u(t): an MLP per weight, one for all weights, interpolation of a
    # table of coefficients at the layers, or an ODE (models/coefficient_ode.py).
    time_mlp: Literal["per_weight", "shared", "table", "ode"] = "per_weight"
    base: bool = True  # W(t) = sum_e u_e(t) F_e + B; False: without B
    # Scales of initial weights, of logits and of updates; mup: learning rates transfer
    # between sizes, see models/mup.py.
    parametrization: Literal["standard", "mup"] = "standard"
    # unit: normalise u(t) to length 1; authors: as in the released code.
    initialization: Literal["unit", "authors"] = "unit"
    # Generate weights once per optimizer step, or inside the scan over depth.
    generate_weights: Literal["tabulated", "per_step"] = "tabulated"
    # Dtype of activations and generated weights; parameters are float32.
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    # Dtype of products in training: that of the model, or 8 bits (models/linear.py).
    matmul_precision: Literal["default", "int8", "fp8"] = "default"
    reduce_dtype: Literal["float32", "bfloat16"] = "float32"  # sums of gradients
    norm_eps: Positive = 1e-5  # epsilon added to the variance in norms
    # Rotary positions: fraction of each query and key that is rotated, from its start.
    rope_fraction: PositiveFraction = 1.0
    rope_base: Positive = 10000.0  # the lowest frequency is about 1 / rope_base
    # Extension to longer sequences than in pretraining, see models/positions.py.
    rope_scaling: Literal["none", "linear", "llama3"] = "none"
    rope_factor: Factor = 1.0  # factor by which frequencies are reduced
    rope_original_len: Count = 8192  # llama3: max_len in pretraining
    rope_low_turns: NonNegative = 1.0  # llama3: fewer turns over that length: reduced
    rope_high_turns: NonNegative = 4.0  # llama3: more turns over that length: unchanged
    chain_norms: bool = False  # llama as in the released code, see models/llama.py
    # Attention kernel for whole sequences. blockwise: CPUs; cudnn: NVIDIA GPUs; splash:
    # TPUs; auto: that of the hardware if it supports this model, otherwise xla.
    attention_implementation: AttentionKernel = "auto"
    dropout: Rate = 0.0  # rate, on the embeddings and on the output of each term
    attention_dropout: Rate = 0.0  # rate, on the attention probabilities
    # Standard deviation over the depth interval of noise that steps add in training.
    depth_noise: NonNegative = 0.0
    # Rematerialisation in the backward pass, see models/remat.py. none: save all;
    # full: no values within a step; dots: outputs of linear maps; save_*: named values.
    remat: RematPolicy = "none"
    # States between steps in the backward pass, see models/depth.py. stored: all;
    # binomial: num_checkpoints of them; reversible: none, by twice the evaluations.
    backward: Literal["stored", "binomial", "reversible"] = "stored"
    num_checkpoints: Count = 4  # binomial: stored states beside the first
    document_masking: bool = False  # mask attention across end-of-text tokens
    end_of_text: TokenId = -1  # id of the end-of-text token; set from the dataset
    # LoRA adapters on linear maps of a layer_table, see models/lora.py.
    lora_rank: CountOrZero = 0  # 0: no adapters
    lora_alpha: Positive = 16.0  # adapter outputs are scaled by alpha / rank
    lora_dropout: Rate = 0.0  # rate, on the inputs of adapters
    # Linear maps with adapters, as ('qkv','ff_in'); empty: all.
    lora_targets: tuple[str, ...] = ()

    @property
    def head_size(self) -> int:
        return self.head_dim or self.d_model // self.num_heads

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads

    @property
    def ff_dim(self) -> int:
        return self.d_ff or 4 * self.d_model

    @property
    def learned_positions(self) -> bool:
        """Whether positions are a learned table, and not rotary."""
        return self.block == "gpt" and self.positions == "default"

    @property
    def rotary_size(self) -> int:
        """Number of entries of each query and key that are rotated."""
        rotated = 0.0 if self.learned_positions else self.rope_fraction
        return int(self.head_size * rotated)

    @property
    def interval(self) -> float:
        """Length of the depth interval.

        By default 1, as in the paper and with muP, or num_layers for a layer_table and
        for the splitting methods: these are discrete transformers, whose steps have
        length 1. `at_depth` keeps the interval at other numbers of steps.
        """
        discrete = self.parametrization == "standard" and (
            self.weights == "layer_table" or is_splitting(self.solver)
        )
        return self.horizon or (float(self.num_layers) if discrete else 1.0)

    @property
    def segments(self) -> int:
        """Number of equal segments of depth on which W(t) is constant, or 0.

        Those of a layer_table are its layers. By default, those of a hypernetwork are
        the steps of euler and lie_trotter, which evaluate W(t) once in a step, at its
        end. `at_depth` keeps them at other numbers of steps, as W(t) between two
        trained times is a mixture that was never trained. A hypernetwork with another
        solver and shared weights have none.
        """
        once = self.weights != "shared" and get_solver(self.solver).order == 1
        of_steps = once or self.weights == "layer_table"
        return self.time_segments or (self.num_layers if of_steps else 0)

    @property
    def step_size(self) -> float:
        return self.interval / self.num_layers

    def at_depth(self, num_layers: int) -> "ModelConfig":
        """Return the same continuous model, integrated in `num_layers` steps."""
        check_solver_steps(num_layers)
        kept = {"horizon": self.interval, "time_segments": self.segments}
        return dataclasses.replace(self, num_layers=num_layers, **kept)

    def for_inference(self) -> "ModelConfig":
        """Return the same model without settings that only matter in training."""
        backward = "stored" if self.backward == "binomial" else self.backward
        return dataclasses.replace(
            self,
            generate_weights="tabulated",
            remat="none",
            backward=backward,
            attention_dropout=0.0,
        )

    def without_adapters(self) -> "ModelConfig":
        """Return the same model with the LoRA fields at their defaults."""
        plain = {f.name: f.default for f in dataclasses.fields(self)}
        names = ("lora_rank", "lora_alpha", "lora_dropout", "lora_targets")
        return dataclasses.replace(self, **{name: plain[name] for name in names})
