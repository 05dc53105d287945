"""How the losses of models depend on compute: one comparison at several sizes."""

import json
from itertools import cycle
from pathlib import Path

import numpy as np

from diffeq_former.analysis import plotting
from diffeq_former.errors import UserError

_SHARED = ("training_flops", "held_out_loss", "held_out_loss_std")
_OF_PAIRS = ("difference", "difference_low", "difference_high")


def read(folders: list[Path]) -> list[dict]:
    """Return what comparisons have found, by model, in the order of compute.

    Args:
      folders: The output of comparisons of the same models, at different sizes.

    Returns:
      A row for each model, whose values are lists over the folders: training_flops, the
      held-out losses and their standard deviations, and the differences to the baseline
      with their intervals. `slope` is that of a line through the losses, in nats per
      factor of 10 in FLOPs, by least squares; `difference_slope` that of the
      differences.

    Raises:
      UserError: If a folder is no finished comparison, or the models differ.
    """
    if len(folders) < 2:
        raise UserError("--comparison: expected two folders or more, one for each size")
    found = [_read_one(folder) for folder in folders]
    for folder, rows in zip(folders, found, strict=True):
        if rows.keys() != found[0].keys():
            raise UserError(
                f"--comparison={folder}: it compares {', '.join(rows)}, and"
                f" {folders[0]} {', '.join(found[0])}; name comparisons of the same"
                " models"
            )
    return [_over_sizes(model, [rows[model] for rows in found]) for model in found[0]]


def _read_one(folder: Path) -> dict[str, dict]:
    path = folder / "figures.jsonl"
    try:
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        found = {
            row["model"]: {name: row[name] for name in (*_SHARED, *_OF_PAIRS)}
            for row in rows
        }
        if not all(row["held_out_loss"] and row["training_flops"] for row in rows):
            raise ValueError("a model has no loss")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"--comparison={folder}: expected the output of tools/experiment.py"
            f" comparison ({error})"
        ) from error
    return found


def _over_sizes(model: str, rows: list[dict]) -> dict:
    rows = sorted(rows, key=lambda row: row["training_flops"])
    lists = {name: [row[name] for row in rows] for name in (*_SHARED, *_OF_PAIRS)}
    decades = np.log10(lists["training_flops"])
    slopes = {"slope": _slope(decades, lists["held_out_loss"])}
    if None not in lists["difference"]:
        slopes["difference_slope"] = _slope(decades, lists["difference"])
    return {"model": model} | lists | slopes


def _slope(x, y) -> float:
    return float(np.polyfit(x, y, 1)[0])


def plot(rows: list[dict], picture: Path) -> None:
    """Plot losses over compute with their lines, and differences to the baseline."""
    with plotting.saved_figure(picture, (9.6, 4), ncols=2) as (left, right):
        for row, style in zip(rows, cycle(plotting.STYLES)):
            flops, losses = row["training_flops"], row["held_out_loss"]
            [line] = left.plot(flops, losses, style, label=row["model"])
            if None in row["difference"]:
                continue
            right.plot(flops, row["difference"], style, color=line.get_color())
            if None not in row["difference_low"]:
                band = row["difference_low"], row["difference_high"]
                color = line.get_color()
                right.fill_between(flops, *band, alpha=0.15, color=color, linewidth=0)
        left.set_ylabel("held-out loss (nats per token)")
        right.set_ylabel("difference to the baseline (nats)")
        right.axhline(0, color="black", linewidth=0.8)
        flops = rows[0]["training_flops"]
        for axes in (left, right):
            axes.set(xscale="log", xlabel="FLOPs of the training")
            axes.set_xticks(flops, [f"{x:.1e}" for x in flops])
            axes.set_xticks([], minor=True)
            axes.grid(alpha=0.3)
        left.legend()
