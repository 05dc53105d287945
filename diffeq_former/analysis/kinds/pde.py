"""What diffusion along the sequence does to a model's states and predictions."""

from pathlib import Path

import numpy as np

from diffeq_former.analysis import plotting
from diffeq_former.analysis.kinds.files import write_json
from diffeq_former.analysis.kinds.states import depths

SHARES = (0, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)  # of the most that is stable
_FIGURES = {
    "effective_rank": "effective rank of the tokens' states",
    "roughness": "|difference of neighbours| / |state|",
}


def pde(trained, folder: Path, *, sentences) -> list[dict]:
    """Writes pde.json and pde.png: the master equation with causal diffusion."""
    from diffeq_former.analysis.pde import LIMIT
    from diffeq_former.analysis.statistics import interval

    coefficients = [share * LIMIT / trained.config.step_size for share in SHARES]
    rows, over_depth = [], []
    for diffusion in coefficients:
        found = [_measure(trained, s, diffusion) for s in sentences]
        losses = interval([f["loss"] for f in found])
        del losses["count"]
        rows.append({"diffusion": diffusion, "sentences": len(found), **losses})
        over_depth.append({n: np.mean([f[n] for f in found], 0) for n in _FIGURES})
    numbers = {
        "unit of diffusion": "tokens^2 / unit of depth",
        "unit of loss": "nats a token",
        "times": depths(trained),
        "losses": rows,
        "over depth": over_depth,
    }
    write_json(folder / "pde.json", numbers)
    _draw(folder / "pde.png", depths(trained), rows, over_depth)
    return rows


def _measure(trained, sentence, diffusion: float) -> dict:
    import optax

    from diffeq_former.analysis import depth, pde
    from diffeq_former.analysis.trajectory import effective_rank

    c, ends, ids_L = trained.config, trained.ends, np.asarray(sentence.ids)
    x_LD = depth.embed(c, ends, ids_L)
    x_TLD = np.asarray(pde.states(c, trained.table, x_LD, diffusion), float)
    logits_LV = depth.logits(c, ends, x_TLD[-1].astype("float32"))[:-1]
    losses_L = optax.softmax_cross_entropy_with_integer_labels(logits_LV, ids_L[1:])
    steps_TLD = np.diff(x_TLD, axis=1)
    lengths = (np.linalg.norm(x, axis=-1).mean(-1) for x in (steps_TLD, x_TLD))
    return {
        "loss": float(losses_L.mean()),
        "roughness": np.divide(*lengths),
        "effective_rank": np.array([effective_rank(x_LD) for x_LD in x_TLD]),
    }


def _draw(path: Path, times, rows: list[dict], over_depth: list[dict]) -> None:
    with plotting.drawn(path, (12, 4), ncols=3) as (left, *panels):
        coefficients = [row["diffusion"] for row in rows]
        left.plot(coefficients, [row["mean"] for row in rows], "k-o")
        left.set(xlabel="diffusion (tokens^2 / unit of depth)")
        left.set_ylabel("loss (nats/token)")
        left.grid(alpha=0.3)
        for axes, (name, words) in zip(panels, _FIGURES.items(), strict=True):
            styled = zip(coefficients, over_depth, plotting.STYLES, strict=True)
            for diffusion, figures, style in styled:
                label = f"diffusion {diffusion:.3g}"
                axes.plot(times, figures[name], style, label=label, ms=4, lw=0.8)
            axes.set(xlabel="time t (share of depth)", ylabel=words)
            axes.grid(alpha=0.3)
        panels[0].legend(fontsize=7)
