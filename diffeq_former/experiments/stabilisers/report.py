"""Tables and plots of all runs of the study."""

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np

from diffeq_former.analysis import pages, plotting
from diffeq_former.analysis.results import write_json
from diffeq_former.experiments.stabilisers import verdict
from diffeq_former.experiments.stabilisers.grid import (
    SIMULATOR,
    UNIT,
)
from diffeq_former.experiments.stabilisers.verdict import spread
from diffeq_former.experiments.tables import markdown
from diffeq_former.json_io import plain

_GROUP = ("model", "residual", "norm", "step", "depth")
# The columns of the table, as functions of a run.
_COLUMNS: dict[str, Callable[[dict], float | None]] = {
    "final loss": lambda r: r["final_loss"],
    "best loss": lambda r: r["best_loss"],
    "diverged at step": lambda r: r["diverged_at"],
    "largest gradient norm": lambda r: r["largest_grad_norm"],
    "drift": verdict.drift,
    "cosine to the input": lambda r: r["end"]["cosine_input"][-1],
    "effective rank, end": lambda r: r["end"]["effective_rank"][-1],
    "gradient at the first / last state": lambda r: _ratio(r["end"]),
    "exponent before (nats/layer)": lambda r: r["start"]["lyapunov"],
    "exponent after": lambda r: r["end"]["lyapunov"],
}


def verdicts(runs: list[dict]) -> list[dict]:
    """Return a row for each claim for which the runs contain pairs."""
    rows = [verdict.drift_verdict(runs, *k) for k in _groups(runs, ("model", "norm"))]
    norms = [key[0] for key in _groups(runs, ("norm",)) if key[0] != "none"]
    for key in _groups(_compared(runs), ("model", "residual", "step")):
        # Transformers are only compared with the usual position of norms.
        known = norms if key[0] == SIMULATOR else ["pre"]
        rows += [verdict.explosion_verdict(runs, *key, norm) for norm in known]
    rows.append(verdict.scaling_verdict(runs))
    return plain([row for row in rows if row])


def write(folder: Path, kind: str, runs: list[dict], rows: list[dict]) -> None:
    """Write KIND.json, table.md, four plots and index.html."""
    table = _table(runs)
    rules = [verdict.DRIFT_RULE, verdict.EXPLOSION_RULE, verdict.SCALING_RULE]
    numbers = {"verdicts": rows, "rules": rules, "table": table, "runs": runs}
    write_json(folder / f"{kind}.json", numbers)
    parts = [markdown(rows), "\n\n".join(rules), markdown(table), _LEGEND]
    (folder / "table.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    _plot_losses(folder / "losses.png", runs)
    _plot_drift(folder / "drift.png", runs)
    _plot_gradients(folder / "gradients.png", runs)
    _plot_exponents(folder / "exponents.png", runs)
    shown = [pages.picture(path) for path in sorted(folder.glob("*.png"))]
    files = [pages.link(folder / name) for name in ("table.md", f"{kind}.json")]
    body = [
        pages.section("Verdicts", pages.table(rows)),
        *map(pages.paragraph, rules),
        pages.section("Runs", pages.table(table) + pages.paragraph(_LEGEND)),
        *shown,
        f"<p>Values: {', '.join(files)}</p>",
    ]
    page = pages.page(_TITLES[kind], "\n".join(body))
    (folder / "index.html").write_text(page, encoding="utf-8")


_TITLES = {
    "stabilisers": "Stabilisers of transformers",
    "simulator": "A PDE simulator beside the transformer",
}
_LEGEND = (
    "Cells show the median [lowest, highest] over learning rates and seeds, of the runs"
    " that have a value. Losses are training losses in nats per token; that at the best"
    " rate is the lowest, over learning rates, of the median over seeds. States,"
    " gradients and exponents are those of held-out text after training, unless"
    " 'before' is stated."
)


def _table(runs: list[dict]) -> list[dict]:
    rows = []
    for key, of_key in _groups(runs, _GROUP).items():
        row = dict(zip(_GROUP, key, strict=True)) | {"runs": len(of_key)}
        row["diverged"] = sum(run["diverged_at"] is not None for run in of_key)
        row["loss at the best rate"] = _loss_at_best_rate(of_key)
        for name, read in _COLUMNS.items():
            row[name] = _formatted(spread(map(read, of_key)))
        rows.append(row)
    return rows


def _loss_at_best_rate(runs: list[dict]) -> str:
    of_rates = _groups(runs, ("learning_rate",)).items()
    medians = {
        rate: spread(run["final_loss"] for run in of_rate)["median"]
        for (rate,), of_rate in of_rates
    }
    known = {rate: loss for rate, loss in medians.items() if loss is not None}
    if not known:
        return "-"
    best = min(known, key=known.get)
    return f"{known[best]:.3g} at {best:g}"


def _formatted(s: dict) -> str:
    if s["median"] is None:
        return "-"
    return f"{s['median']:.3g} [{s['low']:.3g}, {s['high']:.3g}]"


def _ratio(look: dict) -> float | None:
    first, last = look["gradient_norms"][0], look["gradient_norms"][-1]
    return first / last if last else None


def _compared(runs: list[dict]) -> list[dict]:
    """Leave out transformers with scaled steps, which have a verdict of their own."""
    return [r for r in runs if r["step"] == UNIT or r["model"] == SIMULATOR]


def _groups(runs: list[dict], axes: tuple[str, ...]) -> dict[tuple, list[dict]]:
    """Group the runs by their values of these axes, in the order of the runs."""
    groups = {}
    for run in runs:
        groups.setdefault(tuple(run[axis] for axis in axes), []).append(run)
    return groups


def _panels(path: Path, runs: list[dict], plot: Callable) -> None:
    """Draw a panel per norm (rows) and per model, residual and step (columns)."""
    by_panel = _groups(runs, ("norm", "model", "residual", "step"))
    down = list(dict.fromkeys(key[0] for key in by_panel))
    across = list(dict.fromkeys(key[1:] for key in by_panel))
    shape = {"nrows": len(down), "ncols": len(across), "squeeze": False}
    size = (3.2 * len(across) + 1, 3 * len(down))
    with plotting.saved_figure(path, size, sharex=True, sharey="row", **shape) as grid:
        for (i, norm), (j, rest) in itertools.product(
            enumerate(down), enumerate(across)
        ):
            axes, found = grid[i, j], by_panel.get((norm, *rest))
            if not found:
                axes.set_axis_off()
                continue
            plot(axes, found)
            if j:
                axes.set_ylabel("")
            if is_last := not any((n, *rest) in by_panel for n in down[i + 1 :]):
                axes.tick_params(labelbottom=True)
            axes.set_xlabel(axes.get_xlabel() if is_last else "")
            model, residual, step = rest
            title = f"{model}, norm {norm}\nresidual {residual:g}, step {step}"
            axes.set_title(title, fontsize=9)
            axes.grid(alpha=0.3)
        _legend(grid)


def _plot_losses(path: Path, runs: list[dict]) -> None:
    """Plot medians over seeds; losses far above the initial one are cut off."""
    top = 1.3 * float(np.median([run["curves"]["loss"][0] for run in runs]))

    def plot(axes, found):
        for key, style in _styles(found, ("depth", "learning_rate")):
            losses = [r["curves"]["loss"] for r in found if _is_of(r, key)]
            shortest = min(map(len, losses))
            middle = np.median([curve[:shortest] for curve in losses], axis=0)
            depth, rate = key.values()
            steps = np.arange(1, shortest + 1)
            label = f"{depth} layers, rate {rate:g}"
            axes.plot(steps, middle, style, label=label, markevery=0.2, lw=0.8, ms=4)
        axes.set(xlabel="optimizer step", ylabel="training loss (nats/token)")
        axes.set_ylim(top=top)

    _panels(path, runs, plot)


def _plot_gradients(path: Path, runs: list[dict]) -> None:
    def plot(axes, found):
        for key, style in _styles(found, ("depth",)):
            for when, colour in (("start", "0.6"), ("end", "black")):
                norms = [r[when]["gradient_norms"] for r in found if _is_of(r, key)]
                label = f"{key['depth']} layers, {when} of training"
                _plot_over_depth(
                    axes, key["depth"], norms, style, color=colour, label=label
                )
        axes.set(xlabel="fraction of depth", ylabel="|d loss / d state|", yscale="log")

    _panels(path, runs, plot)


_DRIFT = {
    "cka_input": "CKA with the input",
    "cka_step": "CKA with the previous state",
    "cosine_input": "cosine to the input",
    "cosine_step": "cosine to the previous state",
    "effective_rank": "effective rank of the states",
}


def _plot_drift(path: Path, runs: list[dict]) -> None:
    """Plot the drift of the deepest models at the end of training."""
    deepest = max(run["depth"] for run in runs)
    found = [run for run in _compared(runs) if run["depth"] == deepest]
    norms = list(dict.fromkeys(run["norm"] for run in found))
    shape = {"nrows": len(_DRIFT), "ncols": max(1, len(norms)), "squeeze": False}
    size = (3.4 * shape["ncols"] + 1, 2.4 * len(_DRIFT))
    with plotting.saved_figure(path, size, sharex=True, sharey="row", **shape) as grid:
        for (i, (name, label_y)), (j, norm) in itertools.product(
            enumerate(_DRIFT.items()), enumerate(norms)
        ):
            axes, of_norm = grid[i, j], [r for r in found if r["norm"] == norm]
            for key, style in _styles(found, ("model", "residual", "step")):
                values = [r["end"][name] for r in of_norm if _is_of(r, key)]
                label = "{model}, residual {residual:g}, step {step}".format(**key)
                _plot_over_depth(
                    axes, deepest, values, style, color="black", label=label
                )
            axes.set(ylabel=label_y if j == 0 else "")
            axes.grid(alpha=0.3)
            if i == 0:
                axes.set_title(f"norm {norm}, {deepest} layers", fontsize=9)
            if i == len(_DRIFT) - 1:
                axes.set_xlabel("fraction of depth")
        _legend(grid)


def _legend(grid) -> None:
    """Add one legend for all axes of the grid, below them."""
    lines = {
        label: line
        for axes in grid.flat
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    where = {"loc": "outside lower center", "ncols": 3, "fontsize": 9}
    grid.flat[0].figure.legend(lines.values(), lines.keys(), **where)


def _plot_over_depth(axes, depth: int, values: list, style: str, **options) -> None:
    """Plot the median and the range of those values that are finite."""
    values = np.array([v for v in values if np.isfinite(v).all()], float)
    if not len(values):
        return
    # Values per step are plotted at its end.
    share = np.linspace(0, 1, depth + 1)[-values.shape[1] :]
    axes.plot(share, np.median(values, 0), style, ms=4, lw=0.8, **options)
    axes.fill_between(share, values.min(0), values.max(0), color="0.5", alpha=0.2)


def _plot_exponents(path: Path, runs: list[dict]) -> None:
    """Plot the range and median of each model's runs, before and after training."""
    groups = _groups(runs, _GROUP)
    with plotting.saved_figure(path, (7, 1 + 0.3 * len(groups))) as axes:
        for when, marker, shift in (("start", "ko", 0.12), ("end", "ks", -0.12)):
            filled = {"mfc": "white"} if when == "start" else {}
            for index, found in enumerate(groups.values()):
                s = spread(run[when]["lyapunov"] for run in found)
                if s["count"]:
                    y = -index + shift
                    axes.plot([s["low"], s["high"]], [y, y], "-", color="0.6")
                    label = f"{when} of training" if index == 0 else None
                    axes.plot(s["median"], y, marker, ms=4, label=label, **filled)
        labels = [
            f"{model}, residual {r:g}, {n}, step {s}, {d} layers"
            for model, r, n, s, d in groups
        ]
        axes.set_yticks(range(0, -len(groups), -1), labels, fontsize=7)
        axes.axvline(0, color="0.5", lw=0.8)
        axes.set_xlabel("largest Lyapunov exponent (nats/layer)")
        axes.grid(alpha=0.3, axis="x")
        axes.legend(fontsize=7, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))


def _styles(runs: list[dict], axes: tuple[str, ...]):
    """Assign a line style to each combination of values of these axes."""
    keys = sorted(_groups(runs, axes))
    return [
        (dict(zip(axes, key, strict=True)), style)
        for key, style in zip(keys, itertools.cycle(plotting.STYLES), strict=False)
    ]


def _is_of(run: dict, key: dict) -> bool:
    return all(run[axis] == value for axis, value in key.items())
