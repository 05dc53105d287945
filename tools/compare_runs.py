"""Draws the validation loss of several runs against their steps.

tools/compare_runs.py --workdir=runs/small --workdir=runs/plain --output=docs/small.png

Each line on stdout is one JSON object: workdir, steps and losses (nats a token) of its
evaluations, the lowest loss, the median tokens per second. Needs matplotlib:
pip install -e '.[plot]'.
"""

import itertools
import json
import statistics
from pathlib import Path

from absl import flags

from diffeq_former import cli
from diffeq_former.analysis import plotting
from diffeq_former.errors import UserError

_WORKDIRS = flags.DEFINE_multi_string(
    "workdir", None, "A run's folder; give it again for each run.", required=True
)
_OUTPUT = flags.DEFINE_string("output", None, "A new .png file.", required=True)


def main() -> None:
    output = plotting.new_picture(_OUTPUT.value)
    curves = [_curve(Path(workdir)) for workdir in _WORKDIRS.value]
    _draw(curves, output)
    for curve in curves:
        print(json.dumps(curve), flush=True)


def _curve(workdir: Path) -> dict:
    path = workdir / "metrics.jsonl"
    if not path.is_file():
        raise UserError(
            f"{path} is missing: is --workdir={workdir} the folder of a run?"
        )
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    evaluated = [line for line in lines if "validation/loss" in line]
    if not evaluated:
        raise UserError(f"{path} has no evaluation yet: let the run reach its first")
    speeds = [x["tokens_per_second"] for x in lines if "tokens_per_second" in x]
    losses = [line["validation/loss"] for line in evaluated]
    return {
        "workdir": str(workdir),
        "steps": [line["step"] for line in evaluated],
        "losses": losses,
        "lowest_loss": min(losses),
        "tokens_per_second": statistics.median(speeds),
    }


def _draw(curves: list[dict], output: Path) -> None:
    with plotting.drawn(output) as axes:
        for curve, style in zip(curves, itertools.cycle(plotting.STYLES)):
            name = Path(curve["workdir"]).name
            axes.plot(curve["steps"], curve["losses"], style, label=name)
        axes.set(xlabel="optimizer step", ylabel="validation loss (nats a token)")
        axes.grid(alpha=0.3)
        axes.legend()


if __name__ == "__main__":
    cli.run(main)
