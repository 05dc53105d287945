"""Eigenvalues and singular values of the linear maps in a block.

A product A B of [D, R] and [R, D] has the nonzero eigenvalues of B A, which is [R, R]
and small where R is the head size. Eigenvalues are complex. Only weight matrices
count: biases, norms and rotary positions are omitted.

T times, N heads, D model width, H head size, R inner width of a product,
M = min(D, R) eigenvalues.
"""

from pathlib import Path

import numpy as np

from diffeq_former.analysis import plotting
from diffeq_former.analysis.results import write_json
from diffeq_former.config import ModelConfig

Factors = tuple[np.ndarray, np.ndarray]  # A [..., D, R] and B [..., R, D]


def products(c: ModelConfig, weights: dict) -> dict[str, Factors]:
    """Return the factors of QK^T / sqrt(H), of OV and of the feed-forward product.

    States are row vectors: x_i attends to x_j with the score x_i (QK^T) x_j^T, and a
    head adds x_j (OV). Llama's feed-forward product is that of `up` and `down`.

    Args:
      c: The model's config.
      weights: Weights by name, with a leading axis T.

    Returns:
      The factors by name: `qk` and `ov` with leading axes [T, N], `ff` with [T].
    """
    names = ("ff_in", "ff_out") if c.block == "gpt" else ("up", "down")
    first, second = _exact(weights, names)
    return attention_products(c, weights) | {"ff": (first, second)}


def attention_products(c: ModelConfig, weights: dict) -> dict[str, Factors]:
    """Return `qk` and `ov` of `products`, which need only `attention_names`."""
    *q_k_v, o_TNHD = _exact(weights, attention_names(c))
    if c.block == "gpt":
        q_k_v = np.moveaxis(q_k_v[0], 2, 0)
    q_TNDH, k_TNDH, v_TNDH = (_by_head(c, x_TDKH) for x_TDKH in q_k_v)
    return {
        "qk": (q_TNDH * c.head_dim**-0.5, np.swapaxes(k_TNDH, -1, -2)),
        "ov": (v_TNDH, o_TNHD),
    }


def attention_names(c: ModelConfig) -> tuple[str, ...]:
    """Return the names of attention's linear maps, the output projection last."""
    inner = ("qkv",) if c.block == "gpt" else ("query", "key", "value")
    return (*inner, "attention_out")


def eigenvalues(factors: Factors) -> np.ndarray:
    """Return a product's M eigenvalues, complex128 [..., M], largest magnitude first.

    If M < D, the remaining D - M eigenvalues are zero.
    """
    a, b = factors
    small = b @ a if a.shape[-1] < a.shape[-2] else a @ b
    found = np.linalg.eigvals(small).astype(complex)
    order = np.argsort(-np.abs(found), axis=-1, kind="stable")
    return np.take_along_axis(found, order, axis=-1)


def singular_values(factors: Factors) -> np.ndarray:
    """Return a product's M singular values [..., M], the largest first."""
    a, b = factors
    if a.shape[-1] < a.shape[-2]:
        left, right = np.linalg.qr(a, "r"), np.linalg.qr(np.swapaxes(b, -1, -2), "r")
        return np.linalg.svd(left @ np.swapaxes(right, -1, -2), compute_uv=False)
    return np.linalg.svd(a @ b, compute_uv=False)


def positive_share(eigenvalues: np.ndarray) -> np.ndarray:
    """Return the share of eigenvalues with a positive real part [...].

    For OV it indicates copying, for QK attraction.
    """
    return (eigenvalues.real > 0).mean(-1)


BANDS = (0, 5, 25, 50, 75, 95, 100)  # percentiles


def bands(values_TM: np.ndarray) -> np.ndarray:
    """Return the percentiles `BANDS` at each time [len(BANDS), T]."""
    return np.percentile(values_TM.reshape(len(values_TM), -1), BANDS, axis=-1)


def _exact(weights: dict, names: tuple[str, ...]) -> list[np.ndarray]:
    return [np.asarray(weights[name]["kernel"], float) for name in names]


def _by_head(c: ModelConfig, kernel_TDKH: np.ndarray) -> np.ndarray:
    """Return a kernel per head [T, N, D, H], repeating shared key-value heads."""
    shared = c.num_heads // kernel_TDKH.shape[2]
    return np.swapaxes(np.repeat(kernel_TDKH, shared, axis=2), 1, 2)


_TITLES = {
    "qk": "QK$^T$/$\\sqrt{d_{head}}$",
    "ov": "OV",
    "ff": "feed-forward product",
}


def analyze(
    trained, folder: Path, *, beside=None, num_times: int | None = None
) -> list[dict]:
    """Write spectra.npz (all values), spectra.json, bands.png and heads.png."""
    found, arrays = {}, {}
    for role, model in (("run", trained), ("beside", beside)):
        if model is None:
            continue
        own_layers = model.config.weights == "layer_table" and role == "beside"
        times_T = model.times(None if own_layers else num_times)
        of_model = _of_model(model, times_T)
        for name, values in of_model.items():
            arrays |= {f"{role}.{name}.{key}": x for key, x in values.items()}
        arrays[f"{role}.times"] = times_T
        found[role] = {"name": model.name, "times": times_T} | {
            name: _summarise(values) for name, values in of_model.items()
        }
    np.savez(folder / "spectra.npz", **arrays)
    write_json(folder / "spectra.json", found)
    _plot_bands(found, folder / "bands.png")
    _plot_heads(found, folder / "heads.png")
    return [_line(role, summary) for role, summary in found.items()]


def _of_model(model, times_T) -> dict:
    factors_of = products(model.config, model.weights_at(times_T))
    return {
        name: {
            "eigenvalues": eigenvalues(factors),
            "singular_values": singular_values(factors),
        }
        for name, factors in factors_of.items()
    }


def _summarise(values: dict) -> dict:
    """Summarise the values over time: percentiles over all heads, and per head."""
    eigenvalues = values["eigenvalues"]
    return {
        "magnitude": bands(np.abs(eigenvalues)),
        "real_part": bands(eigenvalues.real),
        "singular_value": bands(values["singular_values"]),
        "positive_share": positive_share(eigenvalues),
        "largest": np.abs(eigenvalues).max(-1),
    }


def _line(role: str, summary: dict) -> dict:
    shares = {
        f"{name}_positive_share": float(summary[name]["positive_share"].mean())
        for name in _TITLES
    }
    largest = {
        f"{name}_largest_eigenvalue": float(summary[name]["largest"].max())
        for name in _TITLES
    }
    times = len(summary["times"])
    return {"role": role, "run": summary["name"], "times": times, **shares, **largest}


def _plot_bands(found: dict, path: Path) -> None:
    columns = [(role, key) for role in found for key in ("magnitude", "real_part")]
    size = (3.4 * len(columns), 8)
    shape = {"nrows": 3, "ncols": len(columns), "squeeze": False, "sharex": True}
    with plotting.saved_figure(path, size, **shape) as grid:
        for column, (role, key) in zip(grid.T, columns, strict=True):
            summary = found[role]
            for axes, name in zip(column, _TITLES, strict=True):
                _plot_band(axes, summary["times"], summary[name][key])
                axes.set_title(f"{_TITLES[name]}, {summary['name']}", fontsize=9)
                label = "|eigenvalue|" if key == "magnitude" else "real part"
                axes.set_ylabel(label)
            column[-1].set_xlabel("time t (fraction of depth)")
        grid[0, 0].legend(fontsize=7)


def _plot_band(axes, times_T, bands_PT) -> None:
    for low, grey in enumerate(("0.88", "0.72", "0.5")):
        label = f"{BANDS[low]} to {BANDS[-1 - low]} %"
        lower, upper = bands_PT[low], bands_PT[-1 - low]
        axes.fill_between(times_T, lower, upper, color=grey, linewidth=0, label=label)
    axes.plot(times_T, bands_PT[len(BANDS) // 2], "k-", label="median")
    axes.axhline(0, color="black", linewidth=0.5)
    axes.grid(alpha=0.3)


def _plot_heads(found: dict, path: Path) -> None:
    rows = [
        (name, key) for name in ("qk", "ov") for key in ("positive_share", "largest")
    ]
    shape = {"nrows": len(rows), "ncols": len(found), "squeeze": False}
    with plotting.saved_figure(path, (5 * len(found), 9), **shape) as grid:
        for column, summary in zip(grid.T, found.values(), strict=True):
            for axes, (name, key) in zip(column, rows, strict=True):
                label = (
                    "fraction of real parts > 0"
                    if key == rows[0][1]
                    else "largest |eigenvalue|"
                )
                bounds = (0, 1) if key == rows[0][1] else (0, None)
                image = axes.imshow(
                    summary[name][key].T,
                    aspect="auto",
                    origin="lower",
                    cmap=plotting.COLORMAP,
                    interpolation="nearest",
                    vmin=bounds[0],
                    vmax=bounds[1],
                    extent=(0, 1, -0.5, summary[name][key].shape[1] - 0.5),
                )
                axes.set_title(f"{_TITLES[name]}, {summary['name']}", fontsize=9)
                axes.set_ylabel("head")
                axes.figure.colorbar(image, ax=axes, label=label)
            column[-1].set_xlabel("time t (fraction of depth)")
