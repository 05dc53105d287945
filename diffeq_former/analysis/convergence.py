"""Convergence of a model's final state to that of the exact flow with more steps."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from diffeq_former.config import ModelConfig
from diffeq_former.models.transformer import Transformer
from diffeq_former.ode.solvers import SOLVERS

# Below the former, float32 rounding hides the solver's error; above the latter, errors
# do not follow the order of the solver yet.
SMALLEST, LARGEST = 1e-5, 0.1
FLOW = "rk4"  # the solver of the reference solution,
FINER = 4  # which takes this many times the largest number of steps


def flow(c: ModelConfig, params: dict, tokens_BL, most_steps: int) -> np.ndarray:
    """Return the reference solution [B, L, D] for up to `most_steps` solver steps."""
    return end_of_depth(c, params, tokens_BL, FLOW, FINER * most_steps)


def end_of_depth(
    c: ModelConfig, params: dict, tokens_BL, solver: str, num_steps: int
) -> np.ndarray:
    """Return the normalised final state [B, L, D], computed in float32."""
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
    """Return |found - expected| / |expected| in the Euclidean norm."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def measured_order(counts: Sequence[int], errors: Sequence[float]) -> float | None:
    """Fit p in error ~ counts^-p by least squares.

    Only errors between `SMALLEST` and `LARGEST` are used; None if fewer than two are.
    """
    usable = [
        (n, e) for n, e in zip(counts, errors, strict=True) if SMALLEST < e < LARGEST
    ]
    if len(usable) < 2:
        return None
    logs = np.log(np.array(usable, float))
    return float(-np.polyfit(logs[:, 0], logs[:, 1], 1)[0])


def curves_of_solvers(
    c: ModelConfig, params: dict, tokens_BL, counts: Sequence[int]
) -> list[dict]:
    """Return the relative errors of every solver in several numbers of steps.

    Args:
      c: The model, whose solver does not matter.
      params: Its parameters.
      tokens_BL: Token ids.
      counts: Numbers of steps, the largest last.
    """
    exact = flow(c, params, tokens_BL, counts[-1])
    curves = []
    for name, solver in SOLVERS.items():
        states = (end_of_depth(c, params, tokens_BL, name, n) for n in counts)
        errors = [relative_error(x, exact) for x in states]
        curve = {"solver": name, "order": solver.order, "num_steps": list(counts)}
        measured = {"measured_order": measured_order(counts, errors)}
        curves.append(curve | {"errors": errors} | measured)
    return curves
