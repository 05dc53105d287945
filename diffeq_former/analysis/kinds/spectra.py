"""Eigenvalues of the weights over depth, ours beside another run's (Figures 2, E.1).

T times, N heads.
"""

from pathlib import Path

from diffeq_former.analysis import plotting
from diffeq_former.analysis.kinds.files import write_json

_TITLES = {
    "qk": "QK$^T$/$\\sqrt{d_{head}}$",
    "ov": "OV",
    "ff": "feed-forward product",
}


def spectra(
    trained, folder: Path, *, beside=None, num_times: int | None = None
) -> list[dict]:
    """Writes spectra.npz (all values), spectra.json, bands.png and heads.png."""
    import numpy as np

    found, arrays = {}, {}
    for role, model in (("run", trained), ("beside", beside)):
        if model is None:
            continue
        layers = model.config.weights == "layer_table" and role == "beside"
        times_T = model.times(None if layers else num_times)
        of_model = _of_model(model, times_T)
        for name, values in of_model.items():
            arrays |= {f"{role}.{name}.{key}": x for key, x in values.items()}
        arrays[f"{role}.times"] = times_T
        found[role] = {"name": model.name, "times": times_T} | {
            name: _figures(values) for name, values in of_model.items()
        }
    np.savez(folder / "spectra.npz", **arrays)
    write_json(folder / "spectra.json", found)
    _draw_bands(found, folder / "bands.png")
    _draw_heads(found, folder / "heads.png")
    return [_line(role, figures) for role, figures in found.items()]


def _of_model(model, times_T) -> dict:
    from diffeq_former.analysis import spectra

    products = spectra.products(model.config, model.weights_at(times_T))
    return {
        name: {
            "eigenvalues": spectra.eigenvalues(factors),
            "singular_values": spectra.singular_values(factors),
        }
        for name, factors in products.items()
    }


def _figures(values: dict) -> dict:
    """Over time, of all heads together; and of each head, where there are heads."""
    import numpy as np

    from diffeq_former.analysis.spectra import bands, positive_share

    eigenvalues = values["eigenvalues"]
    return {
        "magnitude": bands(np.abs(eigenvalues)),
        "real_part": bands(eigenvalues.real),
        "singular_value": bands(values["singular_values"]),
        "positive_share": positive_share(eigenvalues),
        "largest": np.abs(eigenvalues).max(-1),
    }


def _line(role: str, figures: dict) -> dict:
    shares = {
        f"{name}_positive_share": float(figures[name]["positive_share"].mean())
        for name in _TITLES
    }
    largest = {
        f"{name}_largest_eigenvalue": float(figures[name]["largest"].max())
        for name in _TITLES
    }
    times = len(figures["times"])
    return {"role": role, "run": figures["name"], "times": times, **shares, **largest}


def _draw_bands(found: dict, path: Path) -> None:
    columns = [(role, key) for role in found for key in ("magnitude", "real_part")]
    size = (3.4 * len(columns), 8)
    shape = {"nrows": 3, "ncols": len(columns), "squeeze": False, "sharex": True}
    with plotting.drawn(path, size, **shape) as grid:
        for column, (role, key) in zip(grid.T, columns, strict=True):
            figures = found[role]
            for axes, name in zip(column, _TITLES, strict=True):
                _draw_band(axes, figures["times"], figures[name][key])
                axes.set_title(f"{_TITLES[name]}, {figures['name']}", fontsize=9)
                what = "|eigenvalue|" if key == "magnitude" else "real part"
                axes.set_ylabel(what)
            column[-1].set_xlabel("time t (share of depth)")
        grid[0, 0].legend(fontsize=7)


def _draw_band(axes, times_T, bands_PT) -> None:
    from diffeq_former.analysis.spectra import BANDS

    for low, grey in enumerate(("0.88", "0.72", "0.5")):
        label = f"{BANDS[low]} to {BANDS[-1 - low]} %"
        lower, upper = bands_PT[low], bands_PT[-1 - low]
        axes.fill_between(times_T, lower, upper, color=grey, linewidth=0, label=label)
    axes.plot(times_T, bands_PT[len(BANDS) // 2], "k-", label="median")
    axes.axhline(0, color="black", linewidth=0.5)
    axes.grid(alpha=0.3)


def _draw_heads(found: dict, path: Path) -> None:
    rows = [
        (name, key) for name in ("qk", "ov") for key in ("positive_share", "largest")
    ]
    shape = {"nrows": len(rows), "ncols": len(found), "squeeze": False}
    with plotting.drawn(path, (5 * len(found), 9), **shape) as grid:
        for column, figures in zip(grid.T, found.values(), strict=True):
            for axes, (name, key) in zip(column, rows, strict=True):
                what = (
                    "share of real parts > 0"
                    if key == rows[0][1]
                    else "largest |eigenvalue|"
                )
                bounds = (0, 1) if key == rows[0][1] else (0, None)
                image = axes.imshow(
                    figures[name][key].T,
                    aspect="auto",
                    origin="lower",
                    cmap=plotting.COLOURS,
                    interpolation="nearest",
                    vmin=bounds[0],
                    vmax=bounds[1],
                    extent=(0, 1, -0.5, figures[name][key].shape[1] - 0.5),
                )
                axes.set_title(f"{_TITLES[name]}, {figures['name']}", fontsize=9)
                axes.set_ylabel("head")
                axes.figure.colorbar(image, ax=axes, label=what)
            column[-1].set_xlabel("time t (share of depth)")
