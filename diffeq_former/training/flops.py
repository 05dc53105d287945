"""Model FLOPs per token, and model FLOPs utilisation (MFU).

The forward and backward pass take 6 N + 12 A D L FLOPs per token. N is the number of
matrix weights that a token is multiplied with: the generated weights at every
evaluation of the vector field, and the head; not the stored parameters. A is the number
of attention evaluations over depth, D the width of all heads together and L the
sequence length (causal masking is not subtracted). Generating the weights is not
counted, as its cost does not depend on the number of tokens.
"""

import math
import re

import jax

from diffeq_former.config import ModelConfig
from diffeq_former.models.blocks import linear_specs
from diffeq_former.ode.solvers import Splitting, get_solver

# The names that JAX and PyTorch give to a device, as a pattern, and its peak FLOP/s in
# dense bfloat16 (from the vendors' data sheets).
PEAKS = {
    "a100-40": (r"NVIDIA A100(?!.*(MIG|80GB)).*", 312e12),
    "a100": (r"NVIDIA A100(?!.*MIG).*80GB.*", 312e12),
    "h100": (r"NVIDIA H100 80GB HBM3", 989e12),
    "h200": (r"NVIDIA H200.*", 989e12),
    "b200": (r"NVIDIA B200", 2250e12),
    "v4": (r"TPU v4", 275e12),
    "v5e": (r"TPU v5 lite|TPU v5e", 197e12),
    "v5p": (r"TPU v5|TPU v5p", 459e12),
    "v6e": (r"TPU v6 lite|TPU v6e", 918e12),
}


def flops_per_token(c: ModelConfig, seq_len: int) -> float:
    """Return the FLOPs of the forward and backward pass for one token."""
    return 3 * forward_flops_per_token(c, seq_len)


def forward_flops_per_token(
    c: ModelConfig, seq_len: int, num_evaluations: float | None = None
) -> float:
    """Return the FLOPs of the forward pass for one token.

    Args:
      c: The model's settings.
      seq_len: The length of the sequences.
      num_evaluations: How often the vector field is evaluated; None: as often as the
        solver does in the model's steps.
    """
    counts = evaluations(c) if num_evaluations is None else (num_evaluations,) * 2
    attention = 4 * counts[0] * c.num_heads * c.head_size * seq_len
    return float(2 * _weights(c, *counts) + attention)


def weights_per_token(c: ModelConfig) -> int:
    """Return N, the number of matrix weights that a token is multiplied with."""
    return _weights(c, *evaluations(c))


def _weights(c: ModelConfig, attention: float, feed_forward: float) -> float:
    field = sum(
        math.prod(spec.kernel) * (feed_forward if "mlp" in spec.axes else attention)
        for spec in linear_specs(c).values()
    )
    return field + c.d_model * c.vocab_size


def peak_flops(device_kind: str) -> float | None:
    """Return the peak FLOP/s of one device of this kind; None if it is not known."""
    for pattern, peak in PEAKS.values():
        if re.fullmatch(pattern, device_kind):
            return peak
    return None


def describe(c: ModelConfig, seq_len: int, devices: list[jax.Device]) -> str:
    """Return one line with the definition of MFU and the values of this run."""
    N, (A, _) = weights_per_token(c), evaluations(c)
    formula = (
        f"flops per token = 6 N + 12 A D L = {flops_per_token(c, seq_len):.4g} "
        f"(N = {N:,} matrix weights, A = {A} attention evaluations,"
        f" D = {c.num_heads * c.head_size}, L = {seq_len})"
    )
    kind = devices[0].device_kind
    peak = peak_flops(kind)
    if peak is None:
        return f"{formula}; MFU not reported: the peak of {kind} is not known"
    return f"{formula}; MFU is of {len(devices)} x {peak / 1e12:.0f} Tflop/s ({kind})"


def evaluations(c: ModelConfig) -> tuple[int, int]:
    """Return how often attention and feed-forward are evaluated over depth."""
    solver, num_steps = get_solver(c.solver), solver_steps(c)
    if isinstance(solver, Splitting):
        terms = [term for term, _ in solver.substeps]
        return num_steps * terms.count(0), num_steps * terms.count(1)
    return num_steps * len(solver.b), num_steps * len(solver.b)


def solver_steps(c: ModelConfig) -> int:
    """Return how many steps of the solver the forward pass takes over depth."""
    return c.num_layers * (2 if c.backward == "reversible" else 1)
