"""Spectra over depth of a model, beside those of another.

T times, N heads, M eigenvalues.
"""

from pathlib import Path

import numpy as np

from diffeq_former.analysis import eigenvalue_tracking, spectra, spectra_plots
from diffeq_former.analysis.results import write_json
from diffeq_former.errors import UserError
from diffeq_former.models.grid import default_grid


def analyze(
    trained, folder: Path, *, beside=None, num_times: int | None = None, head: int = 0
) -> list[dict]:
    """Write spectra.npz (all values), spectra.json and four plots.

    These are bands.png (percentiles over all heads), heads.png (each head), paths.png
    (individual eigenvalues of one head) and jumps.png (see eigenvalue_tracking.py).

    Raises:
      UserError: If a model has no weights at `num_times` times or no such head.
    """
    models = {"run": trained} | ({} if beside is None else {"beside": beside})
    for model in models.values():
        if head >= model.config.num_heads:
            last = model.config.num_heads - 1
            raise UserError(f"--head={head}: {model.name} has heads 0 to {last}")
    found, arrays, paths = {}, {}, {}
    for role, model in models.items():
        refined = role == "run" or model.is_continuous
        times_T = model.times(num_times if refined else None)
        spectra_of = _spectra(model, times_T)
        for name, values in spectra_of.items():
            arrays |= {f"{role}.{name}.{key}": x for key, x in values.items()}
        arrays[f"{role}.times"] = times_T
        found[role] = {
            "name": model.name,
            "times": times_T,
            "grid": np.unique(default_grid(model.config).times_TS),
            "jumps": eigenvalue_tracking.jumps(model),
        } | {name: _summarise(values) for name, values in spectra_of.items()}
        for name in eigenvalue_tracking.NAMES:
            eigenvalues_TM = spectra_of[name]["eigenvalues"][:, head]
            paths_TM = eigenvalue_tracking.track(eigenvalues_TM)
            arrays[f"{role}.{name}.paths"] = paths[role, name] = paths_TM
    np.savez(folder / "spectra.npz", **arrays)
    write_json(folder / "spectra.json", found)
    spectra_plots.plot_bands(found, folder / "bands.png")
    spectra_plots.plot_heads(found, folder / "heads.png")
    spectra_plots.plot_paths(found, paths, head, folder / "paths.png")
    spectra_plots.plot_jumps(found, folder / "jumps.png")
    return [_line(role, summary) for role, summary in found.items()]


def _spectra(model, times_T: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
    """Compute the spectra with as many weights in memory as the model has layers."""
    parts = []
    for start in range(0, len(times_T), model.config.num_layers):
        times = times_T[start : start + model.config.num_layers]
        products = spectra.products(model.config, model.weights_at(times))
        parts.append(
            {
                (name, key): compute(factors)
                for name, factors in products.items()
                for key, compute in (
                    ("eigenvalues", spectra.eigenvalues),
                    ("singular_values", spectra.singular_values),
                )
            }
        )
    found = {}
    for name, key in parts[0]:
        whole = np.concatenate([part[name, key] for part in parts])
        found.setdefault(name, {})[key] = whole
    return found


def _summarise(values: dict) -> dict:
    """Summarise the values over time: percentiles over all heads, and per head."""
    eigenvalues = values["eigenvalues"]
    return {
        "magnitude": spectra.bands(np.abs(eigenvalues)),
        "real_part": spectra.bands(eigenvalues.real),
        "singular_value": spectra.bands(values["singular_values"]),
        "positive_share": spectra.positive_share(eigenvalues),
        "signed_sum": spectra.signed_sum(eigenvalues),
        "largest": np.abs(eigenvalues).max(-1),
    }


def _line(role: str, summary: dict) -> dict:
    line = {"role": role, "run": summary["name"], "times": len(summary["times"])}
    for name in spectra_plots.TITLES:
        line[f"{name}_positive_share"] = float(summary[name]["positive_share"].mean())
    for name in spectra_plots.TITLES:
        line[f"{name}_largest_eigenvalue"] = float(summary[name]["largest"].max())
    for name in eigenvalue_tracking.NAMES:
        line[f"{name}_signed_sum"] = float(summary[name]["signed_sum"].mean())
    return line | _jumps(summary)


def _jumps(summary: dict) -> dict:
    """Return the largest jumps of one step of the grid, and at the finest spacing."""
    if not summary["jumps"]:
        return {}
    [of_step] = [x for x in summary["jumps"] if x["steps"] == 1]
    chosen = {"": of_step, "finest_": summary["jumps"][0]}
    return {
        f"{name}_{prefix}largest_jump": float(jumps[name]["largest"])
        for prefix, jumps in chosen.items()
        for name in eigenvalue_tracking.NAMES
    }
