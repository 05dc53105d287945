"""Model flops utilisation: one definition.

Flops of a token, forward and backward: 6 N + 12 A D L, where N counts the matrix
weights a token is multiplied with (as generated, at every evaluation of the field, and
the head; not the parameters that are stored), A the evaluations of attention over
depth, D the width and L the sequence length (causality not subtracted). Making the
weights is not counted: it does not grow with the tokens.
"""

import math
import re

import jax

from diffeq_former.config import ModelConfig
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.units import Linear
from diffeq_former.ode.solvers import SOLVERS, Splitting

# How JAX and PyTorch call a device, and its dense bfloat16 flops a second (vendors'
# data sheets).
PEAKS = {
    "a100-40": (r"NVIDIA A100(?!.*(MIG|80GB)).*", 312e12),
    "a100-80": (r"NVIDIA A100(?!.*MIG).*80GB.*", 312e12),
    "h100": (r"NVIDIA H100 80GB HBM3", 989e12),
    "h200": (r"NVIDIA H200", 989e12),
    "tpu-v4": (r"TPU v4", 275e12),
    "tpu-v5e": (r"TPU v5 lite|TPU v5e", 197e12),
    "tpu-v5p": (r"TPU v5|TPU v5p", 459e12),
    "tpu-v6e": (r"TPU v6 lite|TPU v6e", 918e12),
}


def flops_per_token(c: ModelConfig, seq_len: int) -> float:
    attention_evaluations, _ = evaluations(c)
    attention = 12 * attention_evaluations * c.d_model * seq_len
    return float(6 * weights_per_token(c) + attention)


def forward_flops_per_token(c: ModelConfig, seq_len: int) -> float:
    """Of it the part without the way back, a third."""
    return flops_per_token(c, seq_len) / 3


def weights_per_token(c: ModelConfig) -> int:
    """N: the matrix weights that a token meets on its way to the logits."""
    attention, feed_forward = evaluations(c)
    linears = [u for u in BLOCKS[c.block].units(c).values() if isinstance(u, Linear)]
    field = sum(
        math.prod(u.kernel) * (feed_forward if "mlp" in u.axes else attention)
        for u in linears
    )
    return field + c.d_model * c.vocab_size


def peak_flops(device_kind: str) -> float | None:
    """Peak flops a second of one such device; None if it is not in the table."""
    for pattern, peak in PEAKS.values():
        if re.fullmatch(pattern, device_kind):
            return peak
    return None


def describe(c: ModelConfig, seq_len: int, devices: list[jax.Device]) -> str:
    """One line: the definition of MFU with this run's numbers."""
    N, (A, _) = weights_per_token(c), evaluations(c)
    formula = (
        f"flops per token = 6 N + 12 A D L = {flops_per_token(c, seq_len):.4g} "
        f"(N = {N:,} weights met, A = {A} attentions, D = {c.d_model}, L = {seq_len})"
    )
    kind = devices[0].device_kind
    peak = peak_flops(kind)
    if peak is None:
        return f"{formula}; MFU not reported: the peak of {kind} is not known"
    return f"{formula}; MFU is of {len(devices)} x {peak / 1e12:.0f} Tflop/s ({kind})"


def evaluations(c: ModelConfig) -> tuple[int, int]:
    """How often attention and feed-forward are evaluated over the depth."""
    solver = SOLVERS[c.solver]
    if isinstance(solver, Splitting):
        terms = [term for term, _ in solver.substeps]
        return c.num_layers * terms.count(0), c.num_layers * terms.count(1)
    return c.num_layers * len(solver.b), c.num_layers * len(solver.b)
