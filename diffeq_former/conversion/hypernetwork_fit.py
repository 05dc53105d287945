"""A hypernetwork whose weights at the times of the layers are those of the layers.

L layers, E time embedding, T times, F features.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from diffeq_former.config import ModelConfig
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.time_embedding import embed_times, features
from diffeq_former.models.units import Linear
from diffeq_former.ode.grid import stage_times
from diffeq_former.ode.solvers import SOLVERS

_PEAK = 4.0  # of a hat before SiLU, which is nearly straight from there to 0
_TIMES_A_LAYER = 16  # at which the hats are fitted
_SMALLEST = 1e-2  # directions of the features that count, relative to the largest


def continuous_model(c: ModelConfig, time_embed_dim: int) -> ModelConfig:
    """The hypernetwork that a layer_table becomes.

    Its u(t) is not divided by its length, so that between two layers the weights are a
    mean of theirs.
    """
    return dataclasses.replace(
        c,
        weights="hypernetwork",
        time_embed_dim=time_embed_dim,
        initialization="authors",
    )


def fit(c: ModelConfig, params: dict) -> tuple[dict, dict[str, float]]:
    """The parameters of a `continuous_model` from those of the layer_table.

    The time MLPs make u_e(t) a hat around the e-th of E times from the first layer's to
    the last's. Given u at the times of the layers, the banks and bases are the smallest
    solution of the least squares, exact where E >= L.

    Args:
      c: The hypernetwork's.
      params: Of the layer_table.

    Returns:
      The parameters, and the relative error of each unit's weights over all layers.
    """
    units = BLOCKS[c.block].units(c)
    times_T = stage_times(c.num_layers, SOLVERS[c.solver].nodes)[:, 0]
    mlp = _hats(c, np.asarray(times_T, np.float64))
    num_mlps = 1 if c.time_mlp == "shared" else len(units)
    mlps = {name: np.stack([x] * num_mlps) for name, x in mlp.items()}
    u_LE = np.asarray(embed_times(c, mlps, times_T)[0], np.float64)
    fitted, errors = {}, {}
    for name, unit in units.items():
        layers = params["weights"][name]
        kind = _fit_linear if isinstance(unit, Linear) else _fit_norm
        fitted[name], errors[name] = kind(u_LE, layers)
    return params | {"weights": fitted | {"time_mlp": mlps}}, errors


def _hats(c: ModelConfig, times_L: np.ndarray) -> dict[str, np.ndarray]:
    """One time MLP, whose outputs are hats of height 1."""
    first, last, E = times_L[0], times_L[-1], c.time_embed_dim
    many_T = np.linspace(first, last, _TIMES_A_LAYER * len(times_L))
    centres_E = np.linspace(first, last, E)
    width = max(1 / len(times_L), (last - first) / max(1, E - 1))
    apart_TE = np.abs(many_T[:, None] - centres_E[None]) / width
    hats_TE = np.maximum(0, 1 - apart_TE)
    phi_TF = features(jnp.asarray(many_T), c.num_frequencies, c.time_scale)
    kernel_FE = np.linalg.lstsq(
        np.asarray(phi_TF, np.float64), _PEAK * hats_TE, rcond=_SMALLEST
    )[0]
    mlp = {
        "kernel_1": kernel_FE,
        "bias_1": np.zeros(E),
        "kernel_2": np.eye(E) / jax.nn.silu(_PEAK),
        "bias_2": np.zeros(E),
    }
    return {name: np.asarray(x, np.float32) for name, x in mlp.items()}


def _fit_linear(u_LE: np.ndarray, layers: dict) -> tuple[dict, float]:
    with_base = np.concatenate([u_LE, np.ones((len(u_LE), 1))], axis=1)
    solution, error = _solve(with_base, layers["kernel"])
    made = {"bank": solution[:-1], "base": solution[-1]}
    if "bias" in layers:
        made["bias_bank"], of_bias = _solve(u_LE, layers["bias"])
        error = max(error, of_bias)
    return made, error


def _fit_norm(u_LE: np.ndarray, layers: dict) -> tuple[dict, float]:
    bank, error = _solve(u_LE, layers["scale"], around=1.0)
    made = {"scale_bank": bank}
    if "shift" in layers:
        made["shift_bank"], of_shift = _solve(u_LE, layers["shift"])
        error = max(error, of_shift)
    return made, error


def _solve(
    u_LE: np.ndarray, layers: np.ndarray, around: float = 0.0
) -> tuple[np.ndarray, float]:
    """The smallest least-squares solution x of u x + around = layers, and its error."""
    layers = np.asarray(layers, np.float64)
    solution = np.tensordot(np.linalg.pinv(u_LE), layers - around, 1)
    left = np.linalg.norm(np.tensordot(u_LE, solution, 1) + around - layers)
    size = np.linalg.norm(layers)
    return solution.astype(np.float32), float(left / size) if size else 0.0
