"""The tables and plots of a comparison."""

import csv
import math
import statistics
from pathlib import Path

from diffeq_former.analysis import plotting
from diffeq_former.analysis.statistics import paired_difference
from diffeq_former.atomic_io import atomic_file
from diffeq_former.experiments import runs
from diffeq_former.experiments.comparison import searches
from diffeq_former.experiments.comparison.study import Comparison
from diffeq_former.experiments.curves import plot_losses
from diffeq_former.experiments.tables import markdown

PICTURE = "comparison.png"  # written last
_VALIDATION = ("model", "settings", "seed", "validation_loss", "perplexity")
_HELD_OUT = ("held_out_loss", "held_out_perplexity", "held_out_bits_per_byte")
_COSTS = (
    "parameters",
    "weights_per_token",
    "training_flops",
    "tokens_per_second",
    "planned_memory_gib",
)
NOTE = """
Losses are in nats per token: the mean over seeds, and the sample standard deviation.
Differences are those to {baseline}, paired by seed; intervals and two-sided p values
are by Student's t over the pairs, and are not corrected for the number of models.
"""


def write(
    folder: Path,
    comparison: Comparison,
    trials: list[dict],
    finals: list[dict],
    warnings: dict[str, list[str]],
) -> None:
    """Write the tables and plots, and print a JSON object for each model.

    Args:
      folder: The folder to write to.
      comparison: The study.
      trials: Rows of the runs of the search, measured.
      finals: Rows of the runs that are compared, measured and evaluated.
      warnings: Warnings about the chosen settings of each model.
    """
    write_trials(folder, trials)
    _write_csv(folder / "finals.csv", finals, (*_VALIDATION, *_HELD_OUT, *_COSTS))
    summary = summarize(comparison.baseline, finals, warnings)
    with atomic_file(folder / "table.md") as path:
        note = NOTE.format(baseline=comparison.baseline)
        path.write_text(_table(summary) + note, encoding="utf-8")
    runs.report(folder, summary)
    if comparison.searched:
        searches.plot(comparison, trials, folder / searches.PICTURE)
    _plot_curves(finals, folder / PICTURE)


def write_trials(folder: Path, trials: list[dict]) -> None:
    """Write a table of all runs of the search."""
    _write_csv(folder / "trials.csv", trials, (*_VALIDATION, *_COSTS))


def summarize(
    baseline: str, finals: list[dict], warnings: dict[str, list[str]]
) -> list[dict]:
    """Compare the held-out losses of each model with those of the baseline.

    Args:
      baseline: The name of the baseline.
      finals: Rows with model, settings, seed and held_out_loss; all models have the
        same seeds.
      warnings: Warnings about each model.

    Returns:
      A row for each model. Statistics that do not exist are None: of one seed, of the
      baseline's difference, and of models with a run that diverged.
    """
    losses: dict[str, dict[int, float]] = {}
    for row in finals:
        losses.setdefault(row["model"], {})[row["seed"]] = row["held_out_loss"]
    settings = {row["model"]: row["settings"] for row in finals}
    # Runs that diverged have no measurements.
    flops = {row["model"]: row.get("training_flops") for row in finals}
    return [
        {"model": model, "settings": settings[model], "seeds": len(own)}
        | {"training_flops": flops[model]}
        | _statistics(own, losses[baseline], model == baseline)
        | {"warnings": [*warnings[model], *_diverged(own)]}
        for model, own in losses.items()
    ]


def _statistics(
    own: dict[int, float], of_baseline: dict[int, float], is_baseline: bool
) -> dict:
    names = ("held_out_loss", "held_out_loss_std", "difference", "difference_low")
    names = (*names, "difference_high", "p_value", "perplexity_ratio")
    found = dict.fromkeys(names)
    if _diverged(own):
        return found
    found["held_out_loss"] = statistics.mean(own.values())
    if len(own) > 1:
        found["held_out_loss_std"] = statistics.stdev(own.values())
    if is_baseline or _diverged(of_baseline):
        return found
    pairs = [(own[seed], of_baseline[seed]) for seed in own]
    difference = paired_difference(*zip(*pairs, strict=True))
    return found | {
        "difference": difference["mean"],
        "difference_low": difference["low"],
        "difference_high": difference["high"],
        "p_value": difference["p_value"],
        "perplexity_ratio": math.exp(difference["mean"]),
    }


def _diverged(losses: dict[int, float]) -> list[str]:
    """Return a warning if some runs diverged."""
    count = sum(loss == math.inf for loss in losses.values())
    return [f"{count} of {len(losses)} runs diverged"] if count else []


def _write_csv(path: Path, rows: list[dict], columns: tuple[str, ...]) -> None:
    with atomic_file(path) as partial, partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def _table(summary: list[dict]) -> str:
    """Return the summary as a table in Markdown."""
    rows = []
    for row in summary:
        low, high = (_number(row[f"difference_{x}"], "+.4f") for x in ("low", "high"))
        loss = _number(row["held_out_loss"], ".4f")
        spread = _number(row["held_out_loss_std"], ".4f")
        columns = {
            "model": row["model"],
            "settings": row["settings"],
            "seeds": row["seeds"],
            "held-out loss": f"{loss} ± {spread}" if spread else loss,
            "difference": _number(row["difference"], "+.4f"),
            "95 % interval": f"{low} to {high}" if low else "",
            "p": _number(row["p_value"], ".2g"),
            "perplexity ratio": _number(row["perplexity_ratio"], ".4f"),
            "warnings": "; ".join(row["warnings"]),
        }
        rows.append(columns)
    return markdown(rows) + "\n"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _plot_curves(finals: list[dict], picture: Path) -> None:
    """Plot validation losses over training: a line for each model."""
    with plotting.saved_figure(picture) as axes:
        plot_losses(axes, [row for row in finals if "losses" in row])
        axes.set_ylabel("validation loss (nats per token)")
        axes.legend()
