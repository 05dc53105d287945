"""Draws perplexity against depth and flops, from what tools/evaluate.py has printed.

tools/evaluate.py --workdir=runs/small --num_steps=4,6,8,12,16 > runs/small.jsonl
tools/depth_curve.py --figures=runs/small.jsonl --output=docs/depth.png

Each line on stdout is one JSON object: figures (the file), num_steps, loss (nats a
token), perplexity, flops_per_token (forward), excess: by which part the perplexity is
above the file's lowest. Needs matplotlib: pip install -e '.[plot]'.
"""

import json
from itertools import cycle
from pathlib import Path

from absl import flags

from diffeq_former import cli
from diffeq_former.analysis import plotting
from diffeq_former.errors import UserError

_FIGURES = flags.DEFINE_multi_string(
    "figures",
    None,
    "A file of tools/evaluate.py's lines; give it again for each run.",
    required=True,
)
_OUTPUT = flags.DEFINE_string("output", None, "A new .png file.", required=True)

_NAMES = ("num_steps", "loss", "perplexity", "flops_per_token")


def main() -> None:
    output = plotting.new_picture(_OUTPUT.value)
    curves = {name: _curve(Path(name)) for name in _FIGURES.value}
    _draw(curves, output)
    for name, points in curves.items():
        for point in points:
            print(json.dumps({"figures": name} | point), flush=True)


def _curve(path: Path) -> list[dict]:
    """The file's points in the order of their depth."""
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        points = [{name: line[name] for name in _NAMES} for line in lines]
        lowest = min(point["perplexity"] for point in points)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"--figures={path}: expected a file with the lines of tools/evaluate.py"
            f" ({error})"
        ) from error
    points.sort(key=lambda point: point["num_steps"])
    return [p | {"excess": p["perplexity"] / lowest - 1} for p in points]


def _draw(curves: dict[str, list[dict]], output: Path) -> None:
    with plotting.drawn(output, (9.6, 4), ncols=2, sharey=True) as (left, right):
        for (name, points), style in zip(curves.items(), cycle(plotting.STYLES)):
            for axes, x in ((left, "num_steps"), (right, "flops_per_token")):
                xs, ys = ([p[key] for p in points] for key in (x, "perplexity"))
                axes.plot(xs, ys, style, label=Path(name).stem)
        left.set(xlabel="solver steps", ylabel="perplexity", yscale="log")
        right.set(xlabel="flops a token, forward")
        for axes in (left, right):
            axes.grid(alpha=0.3, which="both")
        left.legend()


if __name__ == "__main__":
    cli.run(main)
