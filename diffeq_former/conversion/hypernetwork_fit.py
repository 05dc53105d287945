"""Fit of a hypernetwork to a layer_table: its weights at each layer's time match.

L layers, E time embedding, T times, F features.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from diffeq_former.config import ModelConfig
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.grid import default_grid
from diffeq_former.models.time_embedding import embed_times, features
from diffeq_former.models.weight_specs import LinearSpec

_PEAK = 4.0  # height of a hat before SiLU, which is nearly linear from 0 to there
_TIMES_PER_LAYER = 16  # number of times per layer at which the hats are fitted
_SMALLEST = 1e-2  # smallest singular value of the features that counts, relative


def continuous_model(c: ModelConfig, time_embed_dim: int) -> ModelConfig:
    """Return the config of the hypernetwork that a layer_table is converted to.

    It has the authors' initialisation, which does not normalise u(t), so that weights
    between two layers are a mean of theirs.
    """
    return dataclasses.replace(
        c,
        weights="hypernetwork",
        time_embed_dim=time_embed_dim,
        initialization="authors",
        time_mlp="shared" if c.time_mlp == "shared" else "per_weight",
        base=True,
    )


def fit(c: ModelConfig, params: dict) -> tuple[dict, dict[str, float]]:
    """Fit the parameters of a `continuous_model` to those of the layer_table.

    The time MLPs are set so that u_e(t) is a hat function around the e-th of E times,
    which are equally spaced from the first layer's time to the last one's. Given u at
    the times of the layers, banks and bases are the minimum-norm solution of a linear
    least-squares problem, which is exact if E >= L.

    Args:
      c: Config of the hypernetwork.
      params: Parameters of the layer_table.

    Returns:
      The parameters, and for each linear layer and norm the relative error of its
      weights over all layers.
    """
    specs = BLOCKS[c.block].weight_specs(c)
    times_T = default_grid(c).times_TS[:, 0]
    mlp = _hats(c, np.asarray(times_T, np.float64))
    num_mlps = 1 if c.time_mlp == "shared" else len(specs)
    mlps = {name: np.stack([x] * num_mlps) for name, x in mlp.items()}
    u_LE = np.asarray(embed_times(c, mlps, times_T)[0], np.float64)
    fitted, errors = {}, {}
    for name, spec in specs.items():
        layers = params["weights"][name]
        fit_layer = _fit_linear if isinstance(spec, LinearSpec) else _fit_norm
        fitted[name], errors[name] = fit_layer(u_LE, layers)
    return params | {"weights": fitted | {"time_mlp": mlps}}, errors


def _hats(c: ModelConfig, times_L: np.ndarray) -> dict[str, np.ndarray]:
    """Return the parameters of a time MLP whose outputs are hats of height 1."""
    first, last, E = times_L[0], times_L[-1], c.time_embed_dim
    times_T = np.linspace(first, last, _TIMES_PER_LAYER * len(times_L))
    centres_E = np.linspace(first, last, E)
    width = max(1 / len(times_L), (last - first) / max(1, E - 1))
    distance_TE = np.abs(times_T[:, None] - centres_E[None]) / width
    hats_TE = np.maximum(0, 1 - distance_TE)
    phi_TF = features(jnp.asarray(times_T), c.num_frequencies, c.time_scale)
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
    fitted = {"bank": solution[:-1], "base": solution[-1]}
    if "bias" in layers:
        fitted["bias_bank"], bias_error = _solve(u_LE, layers["bias"])
        error = max(error, bias_error)
    return fitted, error


def _fit_norm(u_LE: np.ndarray, layers: dict) -> tuple[dict, float]:
    bank, error = _solve(u_LE, layers["scale"], around=1.0)
    fitted = {"scale_bank": bank}
    if "shift" in layers:
        fitted["shift_bank"], shift_error = _solve(u_LE, layers["shift"])
        error = max(error, shift_error)
    return fitted, error


def _solve(
    u_LE: np.ndarray, layers: np.ndarray, around: float = 0.0
) -> tuple[np.ndarray, float]:
    """Solve u x + around = layers; return the minimum-norm x and the relative error."""
    layers = np.asarray(layers, np.float64)
    solution = np.tensordot(np.linalg.pinv(u_LE), layers - around, 1)
    residual = np.linalg.norm(np.tensordot(u_LE, solution, 1) + around - layers)
    size = np.linalg.norm(layers)
    return solution.astype(np.float32), float(residual / size) if size else 0.0
