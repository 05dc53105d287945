"""How fast a model's state at the end of depth nears that of the flow as steps grow."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from diffeq_former.config import ModelConfig
from diffeq_former.models.transformer import Transformer

# Below it float32 rounds as much as a solver errs; above it no order shows yet.
SMALLEST, LARGEST = 1e-5, 0.1
FLOW = "rk4"  # by its steps the flow is computed,
FINER = 4  # which are so many times as many as the most of the others


def flow(c: ModelConfig, params: dict, tokens_BL, most_steps: int) -> np.ndarray:
    """What `end_of_depth` nears; more exact than with up to so many steps."""
    return end_of_depth(c, params, tokens_BL, FLOW, FINER * most_steps)


def end_of_depth(
    c: ModelConfig, params: dict, tokens_BL, solver: str, num_steps: int
) -> np.ndarray:
    """The normalised state [B, L, D] after so many steps of a solver, in float32."""
    model = dataclasses.replace(
        c.for_inference().at_depth(num_steps),
        solver=solver,
        generate_weights="per_step",  # a table of thousands of steps is too large
        dtype="float32",
    )
    hidden = jax.jit(
        lambda p, tokens_BL: Transformer(model).apply(
            {"params": p}, tokens_BL, method="hidden"
        )
    )
    return np.asarray(hidden(params, tokens_BL))


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def measured_order(counts: Sequence[int], errors: Sequence[float]) -> float | None:
    """The p in error ~ counts^-p, by least squares.

    Of errors that are neither rounding nor too large; None if fewer than two are so.
    """
    kept = [
        (n, e) for n, e in zip(counts, errors, strict=True) if SMALLEST < e < LARGEST
    ]
    if len(kept) < 2:
        return None
    logs = np.log(np.array(kept, float))
    return float(-np.polyfit(logs[:, 0], logs[:, 1], 1)[0])
