"""Do tokens that move by attention alone gather? (C.8, Figures 2c, 2d, 13)"""

from pathlib import Path

import numpy as np

from diffeq_former.analysis import plotting
from diffeq_former.analysis.kinds.files import write_json
from diffeq_former.analysis.kinds.states import over_sentences

_MODEL = "model"


def clustering(
    trained, folder: Path, *, num_seeds: int = 5, num_times: int | None = None
) -> list[dict]:
    """Writes ways.npz, clustering.json, ways.png (first seed) and clusters.png."""
    from diffeq_former.analysis import clustering as simulation

    runs = {
        f"degree {degree}": [simulation.grown(s, degree) for s in range(num_seeds)]
        for degree in simulation.DEGREES
    } | {_MODEL: _of_model(trained, num_seeds, num_times)}
    ways = {name: simulation.in_three(states[0]) for name, states in runs.items()}
    figures = {
        name: {
            "clusters": over_sentences([simulation.num_clusters(s) for s in states]),
            "dispersion": over_sentences([simulation.dispersion(s) for s in states]),
        }
        for name, states in runs.items()
    }
    settings = {
        "tokens": simulation.NUM_TOKENS,
        "seeds": num_seeds,
        "threshold": simulation.THRESHOLD,
        "step size": simulation.STEP_SIZE,
    }
    np.savez(folder / "ways.npz", **ways)
    write_json(folder / "clustering.json", settings | {"over time": figures})
    names = {**{n: n for n in runs}, _MODEL: f"heads of {trained.name}"}
    _draw_ways(folder / "ways.png", ways, names)
    _draw_clusters(folder / "clusters.png", figures, names)
    return [
        {"weights": names[name]}
        | {f"{key} at the end": x["mean"][-1] for key, x in of_run.items()}
        for name, of_run in figures.items()
    ]


def _of_model(trained, num_seeds: int, num_times: int | None) -> list[np.ndarray]:
    """From the embeddings of random tokens, other ones for each seed."""
    from diffeq_former.analysis import clustering, spectra

    c = trained.config
    weights = trained.weights_at(trained.times(num_times))
    products = spectra.products(c, weights)
    token_VD = trained.ends["embedding"]["token"][: trained.tokenizer.vocab_size]
    states = []
    for seed in range(num_seeds):
        drawn = np.random.default_rng(seed).integers(
            len(token_VD), size=clustering.NUM_TOKENS
        )
        states.append(clustering.of_model(c, weights, products, token_VD[drawn]))
    return states


def _draw_ways(path: Path, ways: dict, names: dict) -> None:
    shape = {"nrows": 2, "ncols": -(-len(ways) // 2)}
    with plotting.drawn(path, (12, 8), subplot_kw={"projection": "3d"}, **shape) as g:
        for axes, (name, way_Tn3) in zip(g.flat, ways.items(), strict=True):
            for of_token in np.swapaxes(way_Tn3, 0, 1):
                axes.plot(*of_token.T, color="0.7", linewidth=0.5)
            axes.scatter(*way_Tn3[0].T, color="0.5", marker="^", s=8, label="first")
            axes.scatter(*way_Tn3[-1].T, color="black", marker="o", s=12, label="last")
            axes.set_title(names[name], fontsize=9)
            axes.tick_params(labelsize=6)
            axes.set(xlabel="axis 1", ylabel="axis 2", zlabel="axis 3")
        g.flat[0].legend(fontsize=7)


def _draw_clusters(path: Path, figures: dict, names: dict) -> None:
    words = {
        "clusters": "groups of the 40 tokens",
        "dispersion": "1 - |mean direction|$^2$",
    }
    with plotting.drawn(path, (11, 4), ncols=2) as panels:
        for axes, (key, label) in zip(panels, words.items(), strict=True):
            for style, (name, of_run) in zip(
                plotting.STYLES, figures.items(), strict=True
            ):
                mean = of_run[key]["mean"]
                times = np.linspace(0, 1, len(mean))
                every = max(1, len(mean) // 8)
                axes.plot(times, mean, style, markevery=every, label=names[name])
            axes.set(xlabel="time (share of the run)", ylabel=label)
            axes.grid(alpha=0.3)
        panels[0].set_yscale("log")
        panels[1].legend(fontsize=8)
