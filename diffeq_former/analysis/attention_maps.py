"""Attention maps of each head at each solver step.

L sequence length, N heads, T grid steps.
"""

from pathlib import Path

import numpy as np

from diffeq_former.analysis import depth, plotting
from diffeq_former.analysis.loaded_model import sentence_states
from diffeq_former.analysis.results import write_json
from diffeq_former.analysis.statistics import interval
from diffeq_former.analysis.token_heatmap import label_tokens


def describe(maps_TNLL: np.ndarray) -> dict[str, np.ndarray]:
    """Summarise the attention of each head at each step, averaged over queries.

    Returns:
      Arrays [T, N] by name:
      `entropy`: Entropy of the attention weights in nats; its exponential is the
        effective number of attended tokens.
      `distance`: Mean distance between query and key, in tokens.
      `first`: Attention weight on the first token.
      `self`: Attention weight of each token on itself.
    """
    p = np.asarray(maps_TNLL, float)
    positions = np.arange(p.shape[-1])
    distance_LL = positions[:, None] - positions[None]
    logs = np.log(np.where(p > 0, p, 1))
    return {
        "entropy": -(p * logs).sum(-1).mean(-1),
        "distance": (p * distance_LL).sum(-1).mean(-1),
        "first": p[..., 0].mean(-1),
        "self": np.diagonal(p, axis1=-2, axis2=-1).mean(-1),
    }


_MAX_STEPS, _MAX_HEADS = 6, 8  # shown in maps.png, evenly spaced
_MAX_LABELS = 32  # tokens labelled on each axis of a map


def analyze(trained, folder: Path, *, sentences) -> list[dict]:
    """Write maps.npz, attention.json, maps.png (first sentence), heads.png (mean).

    Entry (i, j) of a map is the attention weight of query i on key j.
    """
    c, table = trained.config, trained.table
    maps = [
        np.asarray(depth.attention_maps(c, table, sentence_states(trained, s)))
        for s in sentences
    ]
    summaries = [describe(maps_TNLL) for maps_TNLL in maps]
    mean = {key: np.mean([d[key] for d in summaries], 0) for key in summaries[0]}
    np.savez(folder / "maps.npz", **{str(i): x for i, x in enumerate(maps, 1)})
    measured = [
        {"text": s.text, "tokens": s.tokens, **d}
        for s, d in zip(sentences, summaries, strict=True)
    ]
    write_json(folder / "attention.json", {"mean": mean, "sentences": measured})
    _plot_maps(folder / "maps.png", maps[0], sentences[0].tokens)
    _plot_heads(folder / "heads.png", mean)
    return [
        {"measure": key} | interval([d[key].mean() for d in summaries]) for key in mean
    ]


def chosen(count: int, most: int) -> list[int]:
    """Return at most `most` evenly spaced indices from 0 to `count` - 1."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def _plot_maps(path: Path, maps_TNLL: np.ndarray, tokens) -> None:
    T, N, L = maps_TNLL.shape[:3]
    steps, heads = chosen(T, _MAX_STEPS), chosen(N, _MAX_HEADS)
    shape = {"nrows": len(steps), "ncols": len(heads), "squeeze": False}
    side = max(1.8, 0.13 * min(L, _MAX_LABELS))
    size = (2 + side * len(heads), 1.6 + side * len(steps))
    with plotting.saved_figure(path, size, sharex=True, sharey=True, **shape) as grid:
        for row, step in zip(grid, steps, strict=True):
            for axes, head in zip(row, heads, strict=True):
                image = axes.imshow(
                    maps_TNLL[step, head], cmap=plotting.COLORMAP, vmin=0, vmax=1
                )
                axes.set_title(f"step {step + 1}, head {head}", fontsize=8)
        for axis in [a.xaxis for a in grid[-1]] + [a.yaxis for a in grid[:, 0]]:
            label_tokens(axis, tokens, _MAX_LABELS)
        figure = grid[0, 0].figure
        figure.supxlabel("key token")
        figure.supylabel("query token")
        figure.colorbar(image, ax=grid, label="attention weight", shrink=0.6)


def _plot_heads(path: Path, mean: dict) -> None:
    units = {
        "entropy": "nats",
        "distance": "tokens",
        "first": "attention weight",
        "self": "attention weight",
    }
    with plotting.saved_figure(path, (10, 7), nrows=2, ncols=2) as grid:
        for axes, (key, values_TN) in zip(grid.flat, mean.items(), strict=True):
            image = axes.imshow(
                values_TN.T,
                aspect="auto",
                origin="lower",
                cmap=plotting.COLORMAP,
                extent=(0.5, len(values_TN) + 0.5, -0.5, values_TN.shape[1] - 0.5),
            )
            axes.set(title=key, xlabel="solver step", ylabel="head")
            plotting.integer_ticks(axes.xaxis, axes.yaxis)
            axes.figure.colorbar(image, ax=axes, label=units[key])
