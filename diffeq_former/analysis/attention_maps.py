"""Attention maps by head and step of depth.

L length, N heads, T grid steps.
"""

from pathlib import Path

import numpy as np

from diffeq_former.analysis import depth, plotting
from diffeq_former.analysis.loaded_model import states_of
from diffeq_former.analysis.results import write_json
from diffeq_former.analysis.statistics import interval


def describe(maps_TNLL: np.ndarray) -> dict[str, np.ndarray]:
    """Of each head at each step, means over the tokens that attend: [T, N].

    Returns:
      `entropy`: nats; log of how many tokens are looked at.
      `distance`: how many tokens back the looks go.
      `first`: the share that the first token gets.
      `self`: the share that each token gives itself.
    """
    p = np.asarray(maps_TNLL, float)
    places = np.arange(p.shape[-1])
    back_LL = places[:, None] - places[None]
    logs = np.log(np.where(p > 0, p, 1))
    return {
        "entropy": -(p * logs).sum(-1).mean(-1),
        "distance": (p * back_LL).sum(-1).mean(-1),
        "first": p[..., 0].mean(-1),
        "self": np.diagonal(p, axis1=-2, axis2=-1).mean(-1),
    }


_MOST_STEPS, _MOST_HEADS = 6, 8  # in a picture, evenly chosen


def analyze(trained, folder: Path, *, sentences) -> list[dict]:
    """Writes maps.npz, attention.json, maps.png (first sentence), heads.png (mean).

    Entry (i, j) of a map is how much of token i's attention token j gets.
    """
    c, table = trained.config, trained.table
    maps = [
        np.asarray(depth.attention_maps(c, table, states_of(trained, s)))
        for s in sentences
    ]
    described = [describe(maps_TNLL) for maps_TNLL in maps]
    mean = {key: np.mean([d[key] for d in described], 0) for key in described[0]}
    np.savez(folder / "maps.npz", **{str(i): x for i, x in enumerate(maps, 1)})
    measured = [
        {"text": s.text, "tokens": s.tokens, **d}
        for s, d in zip(sentences, described, strict=True)
    ]
    write_json(folder / "attention.json", {"mean": mean, "sentences": measured})
    _draw_maps(folder / "maps.png", maps[0])
    _draw_heads(folder / "heads.png", mean)
    return [
        {"measure": key} | interval([d[key].mean() for d in described]) for key in mean
    ]


def chosen(count: int, most: int) -> list[int]:
    """At most so many of `count` numbers, evenly, the first and the last of them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def _draw_maps(path: Path, maps_TNLL: np.ndarray) -> None:
    T, N = maps_TNLL.shape[:2]
    steps, heads = chosen(T, _MOST_STEPS), chosen(N, _MOST_HEADS)
    shape = {"nrows": len(steps), "ncols": len(heads), "squeeze": False}
    size = (2 + 1.8 * len(heads), 1 + 1.8 * len(steps))
    with plotting.drawn(path, size, sharex=True, sharey=True, **shape) as grid:
        for row, step in zip(grid, steps, strict=True):
            for axes, head in zip(row, heads, strict=True):
                image = axes.imshow(
                    maps_TNLL[step, head], cmap=plotting.COLOURS, vmin=0, vmax=1
                )
                axes.set_title(f"step {step + 1}, head {head}", fontsize=8)
        figure = grid[0, 0].figure
        figure.supxlabel("token that is looked at (number)")
        figure.supylabel("token that looks (number)")
        figure.colorbar(image, ax=grid, label="share of attention", shrink=0.6)


def _draw_heads(path: Path, mean: dict) -> None:
    units = {"entropy": "nats", "distance": "tokens", "first": "share", "self": "share"}
    with plotting.drawn(path, (10, 7), nrows=2, ncols=2) as grid:
        for axes, (key, values_TN) in zip(grid.flat, mean.items(), strict=True):
            image = axes.imshow(
                values_TN.T,
                aspect="auto",
                origin="lower",
                cmap=plotting.COLOURS,
                extent=(0.5, len(values_TN) + 0.5, -0.5, values_TN.shape[1] - 0.5),
            )
            axes.set(title=key, xlabel="step of depth", ylabel="head")
            axes.yaxis.get_major_locator().set_params(integer=True)
            axes.figure.colorbar(image, ax=axes, label=units[key])
