"""Verdicts on claims of arXiv 2408.09523, by the rules stated here.

A run is a dict with the axes of its cell and the record of run.py. Two runs are a pair
if their cells differ only in the axes that the claim is about.
"""

import math
import statistics
from collections.abc import Callable, Iterable

from diffeq_former.experiments.stabilisers.grid import SCALED, TRANSFORMER, UNIT

DRIFT_RULE = (
    "Drift is 1 - CKA between the states before the first and after the last step of"
    " depth, of held-out text, at the end of training (1 if all tokens' states are the"
    " same). 'No residual -> drift' is supported if in at least 3/4 of the pairs the"
    " run without a residual connection drifts more, contradicted if in at most 1/4 it"
    " does, and undecided otherwise. Both take steps of length 1. Runs whose states are"
    " not finite have no drift and are omitted."
)
EXPLOSION_RULE = (
    "A run diverges at the first step whose loss or gradient is not finite, or whose"
    " loss is more than 1 nat above the lowest mean of 10 consecutive earlier steps."
    " Training explodes more in the run without norms if it diverges and the other does"
    " not, or, where both or none do, if its largest gradient norm is more than 10"
    " times the other's. 'No norm -> explosive training' is contradicted if this holds"
    " in no more pairs than the reverse, else supported if it holds in at least half of"
    " the pairs, and undecided otherwise."
)
SCALING_RULE = (
    "Runs without norms in steps of 1/L are compared to runs with pre-norm in steps of"
    " 1. Depth-scaled steps replace norms if no more of them diverge and the median"
    " difference of their final losses is at most 0.1 nats; they do not if more diverge"
    " or the median is above 0.5 nats; otherwise they do so in part."
)
_TIMES_LARGER = 10
_ALIKE, _FAR = 0.1, 0.5  # nats
SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "undecided"


def drift(run: dict) -> float:
    """Return the drift of the trained model, see `DRIFT_RULE`."""
    return 1 - run["end"]["cka_input"][-1]


def spread(values: Iterable[float | None]) -> dict:
    """Return median, range and count of the values that are known and finite."""
    known = [x for x in values if x is not None and math.isfinite(x)]
    if not known:
        return {"median": None, "low": None, "high": None, "count": 0}
    median, low, high = statistics.median(known), min(known), max(known)
    return {"median": median, "low": low, "high": high, "count": len(known)}


def drift_verdict(runs: list[dict], model: str, norm: str) -> dict | None:
    """Compare residual 0 with 1 for this model and norm; None without pairs."""
    fixed = {"model": model, "norm": norm, "step": UNIT}
    pairs = _pairs(runs, fixed | {"residual": 0.0}, fixed | {"residual": 1.0})
    drifts = [(drift(a), drift(b)) for a, b in pairs]
    drifts = [pair for pair in drifts if all(map(math.isfinite, pair))]
    if not drifts:
        return None
    share = sum(off > on for off, on in drifts) / len(drifts)
    found = SUPPORTED if share >= 0.75 else UNDECIDED
    return {
        "claim": f"no residual -> drift ({model}, norm {norm})",
        "verdict": CONTRADICTED if share <= 0.25 else found,
        "pairs": len(drifts),
        "share": share,
        **_named("without", spread(off for off, _ in drifts)),
        **_named("with", spread(on for _, on in drifts)),
        "unit": "1 - CKA",
    }


def explosion_verdict(
    runs: list[dict], model: str, residual: float, step: str, norm: str
) -> dict | None:
    """Compare no norm with this one, all else being given; None without pairs."""
    fixed = {"model": model, "residual": residual, "step": step}
    pairs = _pairs(runs, fixed | {"norm": "none"}, fixed | {"norm": norm})
    if not pairs:
        return None
    more, less = (
        sum(_explodes_more(*pair) for pair in side)
        for side in (pairs, [pair[::-1] for pair in pairs])
    )
    found = SUPPORTED if more >= len(pairs) / 2 else UNDECIDED
    without, by = zip(*pairs, strict=True)
    return {
        "claim": (
            f"no norm -> explosive training ({model}, residual {residual:g}, step"
            f" {step}; with: {norm})"
        ),
        "verdict": CONTRADICTED if more <= less else found,
        "pairs": len(pairs),
        "share": more / len(pairs),
        "share reversed": less / len(pairs),
        **_named("without", spread(r["largest_grad_norm"] for r in without)),
        **_named("with", spread(r["largest_grad_norm"] for r in by)),
        "unit": "largest gradient norm",
        "diverged without": _diverged(without),
        "diverged with": _diverged(by),
    }


def scaling_verdict(runs: list[dict]) -> dict | None:
    """Compare steps of 1/L without norms to pre-norm; None without pairs."""
    fixed = {"model": TRANSFORMER, "residual": 1.0}
    pairs = _pairs(
        runs,
        fixed | {"norm": "none", "step": SCALED},
        fixed | {"norm": "pre", "step": UNIT},
    )
    if not pairs:
        return None
    scaled, normed = zip(*pairs, strict=True)
    differences = spread(a["final_loss"] - b["final_loss"] for a, b in pairs)
    diverged = (_diverged(scaled), _diverged(normed))
    found = "in part"
    if diverged[0] <= diverged[1] and _at_most(differences["median"], _ALIKE):
        found = "yes"
    elif diverged[0] > diverged[1] or not _at_most(differences["median"], _FAR):
        found = "no"
    return {
        "claim": "depth-scaled steps (1/L) replace norms",
        "verdict": found,
        "pairs": len(pairs),
        **_named("difference", differences),
        "unit": "final loss, nats",
        "diverged without": diverged[0],
        "diverged with": diverged[1],
    }


def _at_most(value: float | None, limit: float) -> bool:
    return value is not None and value <= limit


def _explodes_more(run: dict, other: dict) -> bool:
    diverged = [r["diverged_at"] is not None for r in (run, other)]
    if diverged[0] != diverged[1]:
        return diverged[0]
    size, of_other = run["largest_grad_norm"], other["largest_grad_norm"]
    return not size <= _TIMES_LARGER * of_other


def _diverged(runs: Iterable[dict]) -> int:
    return sum(run["diverged_at"] is not None for run in runs)


_AXES = ("model", "residual", "norm", "step", "depth", "learning_rate", "seed")


def _pairs(runs: list[dict], of_one: dict, of_other: dict) -> list[tuple[dict, dict]]:
    """Return pairs of runs with these values, which agree in all other axes."""
    rest = [axis for axis in _AXES if axis not in of_one]

    def chosen(axes: dict, key: Callable) -> dict:
        fits = (r for r in runs if all(r[k] == v for k, v in axes.items()))
        return {key(run): run for run in fits}

    one, other = (
        chosen(axes, lambda run: tuple(run[axis] for axis in rest))
        for axes in (of_one, of_other)
    )
    return [(one[key], other[key]) for key in one if key in other]


def _named(name: str, values: dict) -> dict:
    return {f"{name}, {key}": values[key] for key in ("median", "low", "high")}
