"""Clustering of tokens that move by attention alone (paper, appendix C.8).

n tokens, d dimensions, T steps, V vocabulary, D model width, S seeds.
"""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from diffeq_former.analysis import plotting, simulation, spectra
from diffeq_former.analysis.results import write_json
from diffeq_former.analysis.statistics import interval
from diffeq_former.analysis.trajectory import (
    MAX_ENERGY,
    directions,
    interaction_energy,
)

HORIZON, STEP_SIZE = 10.0, 0.05  # 200 steps, as in C.8
POLYNOMIALS = ("(t/T)^0", "(t/T)^1", "(t/T)^2", "(t/T)^3", "(t/T)^4")
THRESHOLD = 0.1  # directions closer than this belong to the same cluster


def dispersion(states_Tnd: np.ndarray) -> np.ndarray:
    """Return 1 - |mean direction|^2 [T]: 0 if aligned, 1 if directions cancel out."""
    return 1 - np.square(directions(states_Tnd).mean(1)).sum(-1)


def num_clusters(states_Tnd: np.ndarray) -> np.ndarray:
    """Count the clusters of tokens at each time [T].

    Two tokens are linked if their directions are closer than `THRESHOLD`; a cluster is
    a connected component.
    """
    u = directions(states_Tnd)
    close = u @ np.swapaxes(u, 1, 2) > 1 - THRESHOLD**2 / 2  # |u - v|^2 = 2 - 2 u v
    linked = close.astype(np.float32)
    for _ in range(int(np.ceil(np.log2(max(2, u.shape[1]))))):
        linked = (linked @ linked > 0).astype(np.float32)
    first = linked.argmax(-1)  # the lowest token index in each token's cluster
    return (first == np.arange(u.shape[1])).sum(-1)


def half_time(counts_T: np.ndarray, times_T: np.ndarray) -> float:
    """Return the first time with at most half of the initial clusters, or infinity."""
    halved = counts_T <= counts_T[0] / 2
    return float(times_T[halved.argmax()]) if halved.any() else np.inf


def in_three(states_Tnd: np.ndarray) -> np.ndarray:
    """Project the states onto their three principal axes [T, n, 3]."""
    flat = states_Tnd.reshape(-1, states_Tnd.shape[-1])
    centred = flat - flat.mean(0)
    axes = np.linalg.svd(centred, full_matrices=False)[2][:3]
    return (centred @ axes.T).reshape(*states_Tnd.shape[:2], -1)


@dataclasses.dataclass(frozen=True)
class _Runs:
    """The same dynamics from several seeds."""

    states: Sequence[np.ndarray]  # of each seed [T + 1, n, d]
    times_T: np.ndarray  # amount of attention so far, as a fraction of the horizon

    @functools.cached_property
    def measures(self) -> dict[str, np.ndarray]:
        """The number of clusters, dispersion and energy over time [S, T + 1]."""
        energy = np.array([interaction_energy(x) for x in self.states])
        return {
            "clusters": np.array([num_clusters(x) for x in self.states]),
            "dispersion": np.array([dispersion(x) for x in self.states]),
            "energy": energy / MAX_ENERGY,
        }

    def summary(self, baseline: "_Runs") -> dict:
        """Return the mean measures over time, and their values at the end.

        `difference` is the number of clusters less that of the baseline from the same
        seeds; None for the baseline itself. `half time` is the median over seeds,
        None if most do not reach it.
        """
        counts = self.measures["clusters"]
        fewer = counts[:, -1] - baseline.measures["clusters"][:, -1]
        halved = float(np.median([half_time(c, self.times_T) for c in counts]))
        return {
            "time": self.times_T,
            "mean": {name: x.mean(0) for name, x in self.measures.items()},
            "at the end": {k: interval(x[:, -1]) for k, x in self.measures.items()},
            "difference": None if baseline is self else interval(fewer),
            "half time": halved if np.isfinite(halved) else None,
        }

    def typical(self, baseline: "_Runs") -> np.ndarray:
        """Return the trajectory in 3-d of the seed that is the baseline's median."""
        counts = baseline.measures["clusters"][:, -1]
        states_Tnd = self.states[np.abs(counts - np.median(counts)).argmin()]
        if states_Tnd.shape[-1] == 3:
            return directions(states_Tnd)
        return in_three(states_Tnd)


_MODEL = ("model", "")  # its key among those of weights and polynomials


def analyze(
    trained,
    folder: Path,
    *,
    num_seeds: int = 5,
    num_times: int | None = None,
    polynomials: Sequence[str] = POLYNOMIALS,
    horizon: float = HORIZON,
    step_size: float = STEP_SIZE,
    normalisation: str = "sphere",
    equal_integrals: bool = True,
) -> list[dict]:
    """Write clustering.json, clusters.png and, of a typical seed, the trajectories.

    These are ways.npz, ways.png (random weights and the model) and ways_identity.png.
    Args other than the model's are those of simulation.py.
    """
    betas = simulation.parse_betas(polynomials, horizon, equal_integrals)
    num_steps = simulation.count_steps(betas, step_size)
    h = horizon / num_steps
    runs = {}
    for weights, beta in itertools.product(simulation.WEIGHTS, betas):
        betas_T = simulation.step_betas(beta, num_steps)
        states = simulation.trajectories(weights, betas_T, h, normalisation, num_seeds)
        times_T = np.concatenate([[0], np.cumsum(betas_T) / num_steps])
        runs[weights, beta.name] = _Runs(states, times_T)
    states = _of_model(trained, num_seeds, num_times)
    runs[_MODEL] = _Runs(states, np.linspace(0, 1, len(states[0])))
    baselines = {key: runs.get((key[0], betas[0].name), runs[key]) for key in runs}
    found = {key: run.summary(baselines[key]) for key, run in runs.items()}
    settings = {
        "tokens": simulation.NUM_TOKENS,
        "seeds": num_seeds,
        "threshold": THRESHOLD,
        "horizon": horizon,
        "step size": h,
        "normalisation": normalisation,
        "equal integrals": equal_integrals,
    }
    values = [{"weights": w, "beta": beta} | x for (w, beta), x in found.items()]
    write_json(folder / "clustering.json", settings | {"runs": values})
    heads = f"heads of {trained.name}"
    typical = {key: run.typical(baselines[key]) for key, run in runs.items()}
    np.savez(folder / "ways.npz", **_by_weights(typical))
    titles = {k: f"{k[0]} weights, {k[1]}" for k in runs} | {_MODEL: heads}
    for name, is_shown in (("ways", False), ("ways_identity", True)):
        shown = {k: x for k, x in typical.items() if (k[0] == "identity") == is_shown}
        _plot_trajectories(
            folder / f"{name}.png", {titles[k]: x for k, x in shown.items()}
        )
    _plot_clusters(folder / "clusters.png", found, heads)
    return [
        _row(heads if key == _MODEL else key[0], key[1], summary)
        for key, summary in found.items()
    ]


def _by_weights(typical: dict) -> dict[str, np.ndarray]:
    """Return the trajectories of each kind of weights [polynomials, T + 1, n, 3]."""
    names = dict.fromkeys(weights for weights, _ in typical)
    return {n: np.stack([x for (w, _), x in typical.items() if w == n]) for n in names}


def _row(weights: str, beta: str, summary: dict) -> dict:
    row = {"weights": weights} | ({"beta": beta} if beta else {})
    values = summary["at the end"] | {"difference": summary["difference"]}
    for name, x in values.items():
        if x is None:
            continue
        row |= {name: x["mean"], f"{name}, low": x["low"], f"{name}, high": x["high"]}
    return row | {"half time": summary["half time"]}


def _of_model(trained, num_seeds: int, num_times: int | None) -> list[np.ndarray]:
    """Simulate the model from the embeddings of random tokens, once per seed."""
    c = trained.config
    weights = trained.weights_at(trained.times(num_times))
    products = spectra.products(c, weights)
    token_VD = trained.outer["embedding"]["token"][: trained.tokenizer.vocab_size]
    states = []
    for seed in range(num_seeds):
        rng, size = np.random.default_rng(seed), simulation.NUM_TOKENS
        sampled = rng.integers(len(token_VD), size=size)
        states.append(simulation.of_model(c, weights, products, token_VD[sampled]))
    return states


def _plot_trajectories(path: Path, shown: dict) -> None:
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    shape = {"nrows": rows, "ncols": columns, "squeeze": False}
    options = {"subplot_kw": {"projection": "3d"}} | shape
    with plotting.saved_figure(path, (4 * columns, 4 * rows), **options) as grid:
        for axes, (title, trajectory_Tn3) in zip(
            grid.flat, shown.items(), strict=False
        ):
            _plot_trajectory(axes, trajectory_Tn3)
            axes.set_title(title, fontsize=10)
        for axes in grid.flat[len(shown) :]:
            axes.remove()
        handles = grid[0, 0].get_legend_handles_labels()
        grid[0, 0].figure.legend(*handles, loc="outside lower center", ncols=3)


def _plot_trajectory(axes, trajectory_Tn3: np.ndarray) -> None:
    for number, token_T3 in enumerate(np.swapaxes(trajectory_Tn3, 0, 1)):
        label = None if number else "path of a token"
        axes.plot(*token_T3.T, color="0.7", linewidth=0.6, label=label)
    ends = {
        "start": (trajectory_Tn3[0], {"marker": "^", "s": 10, "facecolors": "white"}),
        "end": (trajectory_Tn3[-1], {"marker": "o", "s": 16, "facecolors": "black"}),
    }
    for label, (x_n3, style) in ends.items():
        axes.scatter(
            *x_n3.T, label=label, edgecolors="black", depthshade=False, **style
        )
    axes.tick_params(labelsize=7)
    axes.locator_params(nbins=4)
    axes.set(xlabel="axis 1", ylabel="axis 2", zlabel="axis 3")
    axes.set_box_aspect((1, 1, 1), zoom=0.85)  # leaves room for the z label


_COUNTS = (1, 2, 5, 10, 20, 40)  # ticks
_LABELS = {
    "clusters": "number of clusters",
    "dispersion": "1 - |mean direction|$^2$",
    "energy": "interaction energy / its maximum",
}


def _plot_clusters(path: Path, found: dict, heads: str) -> None:
    rows = {name: {} for name in simulation.WEIGHTS}
    for (weights, name), summary in found.items():
        row = "random" if (weights, name) == _MODEL else weights
        rows[row][name or heads] = summary
    shape = {"nrows": len(rows), "ncols": len(_LABELS), "sharex": True, "sharey": "col"}
    with plotting.saved_figure(path, (12, 7.5), **shape) as grid:
        for panels, (weights, summaries) in zip(grid, rows.items(), strict=True):
            for axes, (measure, label) in zip(panels, _LABELS.items(), strict=True):
                _plot_means(axes, summaries, measure)
                axes.set(ylabel=label, title=f"{weights} weights")
            panels[0].set_yscale("log")
            panels[0].set_yticks(_COUNTS, map(str, _COUNTS))
        for axes in grid[-1]:
            axes.set_xlabel("integral of beta / T (heads: depth)")
        handles = grid[0, 0].get_legend_handles_labels()
        grid[0, 0].figure.legend(*handles, loc="outside lower center", ncols=6)


def _plot_means(axes, summaries: dict, measure: str) -> None:
    styles = itertools.cycle(plotting.STYLES)
    for style, (name, summary) in zip(styles, summaries.items(), strict=False):
        x_T, mean_T = summary["time"], summary["mean"][measure]
        every = max(1, len(mean_T) // 8)
        axes.plot(x_T, mean_T, style, markevery=every, markersize=4, label=name)
    axes.grid(alpha=0.3)
