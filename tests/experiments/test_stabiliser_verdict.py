"""Verdicts over made-up runs."""

import itertools
import json
import math

import pytest

from diffeq_former.analysis import plotting
from diffeq_former.experiments.stabilisers import report, verdict


def run_of(residual=1.0, norm="pre", step="1", seed=0, depth=4, **measured):
    T = depth + 1
    look = {
        "cka_input": [1.0] * depth + [1 - measured.pop("drift", 0.5)],
        "cka_step": [0.9] * depth,
        "cosine_input": [0.8] * T,
        "cosine_step": [0.7] * depth,
        "effective_rank": [5.0] * T,
        "gradient_norms": [1.0] * T,
        "lyapunov": 0.1,
    }
    return {
        "model": "transformer",
        "residual": residual,
        "norm": norm,
        "step": step,
        "depth": depth,
        "learning_rate": 0.01,
        "seed": seed,
        "final_loss": 3.0,
        "best_loss": 3.0,
        "largest_grad_norm": 1.0,
        "diverged_at": None,
        "start": look,
        "end": look,
        "curves": {"loss": [4.0, 3.0], "grad_norm": [1.0, 1.0]},
    } | measured


@pytest.mark.parametrize(
    "drifts, expected",
    [
        ([0.9, 0.9, 0.9, 0.1], "supported"),
        ([0.9, 0.9, 0.1, 0.1], "undecided"),
        ([0.9, 0.1, 0.1, 0.1], "contradicted"),
        ([0.9, math.nan, math.nan, math.nan], "supported"),
    ],
)
def test_drift(drifts, expected):
    runs = [run_of(seed=s, drift=0.5) for s in range(5)]  # the last has no pair
    runs += [run_of(0.0, seed=s, drift=x) for s, x in enumerate(drifts)]
    runs += [run_of(0.0, model="simulator", seed=s, drift=0.1) for s in range(5)]
    found = verdict.drift_verdict(runs, "transformer", "pre")
    assert found["verdict"] == expected
    assert found["pairs"] == sum(map(math.isfinite, drifts))
    assert found["with, median"] == 0.5
    assert verdict.drift_verdict(runs, "transformer", "post") is None
    assert verdict.drift_verdict(runs, "simulator", "pre") is None


@pytest.mark.parametrize(
    "without, by, expected",
    [
        ([7, 7, None, None], [None] * 4, "supported"),
        ([7, None, None, None], [None] * 4, "undecided"),
        ([None] * 4, [None] * 4, "contradicted"),
        ([7, 7, None, None], [None, None, 7, 7], "contradicted"),
        ([7, None, None, None], [None, None, None, 7], "contradicted"),
        ([7] * 4, [7] * 4, "contradicted"),
    ],
)
def test_explosion(without, by, expected):
    runs = [run_of(norm="none", seed=s, diverged_at=x) for s, x in enumerate(without)]
    runs += [run_of(seed=s, diverged_at=x) for s, x in enumerate(by)]
    found = verdict.explosion_verdict(runs, "transformer", 1.0, "1", "pre")
    assert found["verdict"] == expected
    for other in (
        ("simulator", 1.0, "1", "pre"),
        ("transformer", 0.5, "1", "pre"),
        ("transformer", 1.0, "1/L", "pre"),
        ("transformer", 1.0, "1", "post"),
    ):
        assert verdict.explosion_verdict(runs, *other) is None


def test_larger_gradients_are_explosions():
    for size, share in ((9.0, 0), (11.0, 1), (math.inf, 1), (math.nan, 1)):
        runs = [run_of(norm="none", largest_grad_norm=size), run_of()]
        found = verdict.explosion_verdict(runs, "transformer", 1.0, "1", "pre")
        assert found["share"] == share


@pytest.mark.parametrize(
    "loss, diverged, expected",
    [
        (3.05, None, "yes"),
        (3.3, None, "in part"),
        (3.6, None, "no"),
        (3.05, 9, "no"),
        (math.nan, None, "no"),
    ],
)
def test_scaling(loss, diverged, expected):
    scaled = run_of(norm="none", step="1/L", final_loss=loss, diverged_at=diverged)
    assert verdict.scaling_verdict([scaled, run_of()])["verdict"] == expected
    assert verdict.scaling_verdict([scaled]) is None


def test_norms_are_added_to_simulators_one_at_a_time():
    axes = itertools.product((1.0, 0.0), ("none", "head", "post"), ("1", "1/L"))
    runs = [run_of(*key, model="simulator") for key in axes if key[0] or key[2] == "1"]
    runs += [run_of(norm=norm) for norm in ("none", "pre", "post")]
    claims = [row["claim"] for row in report.verdicts(runs)]
    of_norms = itertools.product(("none", "head", "post"))
    expected = [f"no residual -> drift (simulator, norm {n})" for (n,) in of_norms]
    models = [f"simulator, residual {r}, step {s}" for r, s in ((1, 1), (1, "1/L"))]
    models.append("simulator, residual 0, step 1")
    normed = [(m, n) for m in models for n in ("head", "post")]
    normed.append(("transformer, residual 1, step 1", "pre"))
    expected += [
        f"no norm -> explosive training ({model}; with: {norm})"
        for model, norm in normed
    ]
    assert claims == expected


def test_a_report_of_runs_that_may_have_diverged(tmp_path):
    plotting.require_matplotlib()
    axes = itertools.product((1.0, 0.0), ("pre", "none"), ("1", "1/L"), (4, 6))
    runs = [run_of(r, n, s, depth=d) for r, n, s, d in axes if r == 1 or s == "1"]
    runs += [
        run_of(norm="none", seed=1, drift=math.nan, final_loss=math.inf, diverged_at=2)
    ]
    rows = report.verdicts(runs)
    assert [row["claim"].split(" (")[0] for row in rows] == [
        *["no residual -> drift"] * 2,
        *["no norm -> explosive training"] * 2,
        "depth-scaled steps",
    ]
    # Some panels are enough to draw, one of them empty.
    drawn = [run for run in runs if run["residual"] == 1]
    drawn = [run for run in drawn if (run["norm"], run["step"]) != ("pre", "1/L")]
    drawn += [run_of(norm="head", step="1/L", model="simulator", learning_rate=0.1)]
    report.write(tmp_path, "simulator", drawn, rows)
    names = ("losses", "drift", "gradients", "exponents")
    for name in names:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "simulator.json").read_text()
    numbers = json.loads(text, parse_constant=pytest.fail)
    assert numbers["runs"][-2]["final_loss"] is None and len(numbers["rules"]) == 3
    table = (tmp_path / "table.md").read_text()
    assert "| 3 [3, 3] |" in table and verdict.DRIFT_RULE in table
    assert table.count("| 3 at 0.01 |") == 6 and table.count("| 3 at 0.1 |") == 1
    page = (tmp_path / "index.html").read_text()
    assert page.count("<img") == 4 and "Verdicts" in page
