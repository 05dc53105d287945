r"""Plots several runs or files side by side, or how a run's solvers converge.

tools/plot.py losses --workdir=runs/small --workdir=runs/plain --output=docs/small.png
tools/plot.py depth --metrics=runs/small.jsonl --output=docs/depth.png
tools/plot.py convergence --workdir=runs/small --output=docs/convergence.png
tools/plot.py trend --comparison=runs/width-64 --comparison=runs/width-128 \
  --output=docs/trend.png

losses: the validation loss of runs against their steps. A line for each run: workdir,
steps and losses (nats per token) of its evaluations, the lowest loss, the median tokens
per second.

depth: perplexity against depth and FLOPs, from what tools/evaluate.py has printed
(tools/evaluate.py --workdir=runs/small --num_steps=4,6,8,12,16 > runs/small.jsonl). A
line for each depth: metrics (the file), num_steps or, for adaptive steps, rtol, loss
(nats per token), perplexity, flops_per_token (forward), and by which part the
perplexity is above the file's lowest (excess).

convergence: how the state at the end of depth approaches that of the flow as steps
grow. A run's latest checkpoint is integrated by every solver in several numbers of
steps; errors are relative to the state of rk4 in four times as many as the most. A line
for each solver: its order on smooth fields, num_steps, errors, and the measured order
(null: too few errors are small without being rounding). A model with fast sinusoids
(model.time_scale) shows its orders only in steps that are short against them. The text
is the first sequences of the validation split; where the mesh of the run does not suit
the devices, choose another: --config.mesh.data=1 --config.mesh.fsdp=-1.

trend: the losses of tools/experiment.py comparison over the FLOPs of training, where
the same models were compared at several sizes. A line for each model, with lists over
the sizes: training_flops, held_out_loss and its standard deviation, the difference to
the baseline and its interval; and the slopes of losses and differences per factor of
10 in FLOPs.

Each line on stdout is one JSON object. Requires the extra plot.
"""

import json
import statistics
from itertools import cycle
from pathlib import Path

from absl import flags

from diffeq_former import cli
from diffeq_former.analysis import plotting
from diffeq_former.cli import mesh_flags
from diffeq_former.errors import UserError
from diffeq_former.json_io import print_line

flags.DEFINE_string("output", None, "A new .png file.")
flags.DEFINE_multi_string(
    "workdir", None, "losses, convergence: a run's folder; losses takes several."
)
flags.DEFINE_multi_string(
    "metrics", None, "depth: a file of tools/evaluate.py's lines; one for each run."
)
flags.DEFINE_multi_string(
    "comparison", None, "trend: the output of a comparison; one for each size."
)
flags.DEFINE_string(
    "data", None, "convergence: a prepared dataset; else the run's own."
)
flags.DEFINE_list(
    "num_steps", None, "convergence: numbers of steps; else 8,16,32,64,128,256."
)
flags.DEFINE_integer(
    "num_sequences",
    None,
    "convergence: sequences of the split, else 2; more where devices share them.",
    lower_bound=1,
    upper_bound=10_000,
)
flags.adopt_module_key_flags(mesh_flags)


def losses(output: str, workdir: list[str]) -> None:
    path = plotting.new_plot(output)
    curves = [_losses_of(Path(one)) for one in workdir]
    with plotting.saved_figure(path) as axes:
        for curve, style in zip(curves, cycle(plotting.STYLES)):
            name = Path(curve["workdir"]).name
            axes.plot(curve["steps"], curve["losses"], style, label=name)
        axes.set(xlabel="optimizer step", ylabel="validation loss (nats per token)")
        axes.grid(alpha=0.3)
        axes.legend()
    _print(curves)


def _losses_of(workdir: Path) -> dict:
    from diffeq_former.training import metrics_file

    lines = metrics_file.read(workdir)
    evaluated = [x for x in lines if x.get("validation/loss") is not None]
    if not evaluated:
        raise UserError(
            f"--workdir={workdir}: no evaluation in {workdir / metrics_file.NAME}; name"
            " a run that has reached its first"
        )
    speeds = [x["tokens_per_second"] for x in lines if "tokens_per_second" in x]
    values = [line["validation/loss"] for line in evaluated]
    return {
        "workdir": str(workdir),
        "steps": [line["step"] for line in evaluated],
        "losses": values,
        "lowest_loss": min(values),
        "tokens_per_second": statistics.median(speeds),
    }


def depth(output: str, metrics: list[str]) -> None:
    path = plotting.new_plot(output)
    curves = {name: _by_depth(Path(name)) for name in metrics}
    with plotting.saved_figure(path, (9.6, 4), ncols=2, sharey=True) as (left, right):
        for (name, points), style in zip(curves.items(), cycle(plotting.STYLES)):
            for axes, x in ((left, "num_steps"), (right, "flops_per_token")):
                known = [p for p in points if x in p]
                xs, ys = ([p[key] for p in known] for key in (x, "perplexity"))
                axes.plot(xs, ys, style, label=Path(name).stem)
        left.set(xlabel="solver steps", ylabel="perplexity")
        plotting.logarithmic_y(left)
        right.set(xlabel="FLOPs per token, forward")
        for axes in (left, right):
            axes.grid(alpha=0.3, which="both")
        right.legend()
    _print({"metrics": name} | p for name, points in curves.items() for p in points)


def _by_depth(path: Path) -> list[dict]:
    """Return the file's points in the order of their FLOPs."""
    names = ("loss", "perplexity", "flops_per_token")
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        steps = ["rtol" if "rtol" in line else "num_steps" for line in lines]
        points = [
            {name: line[name] for name in (own, *names)}
            for own, line in zip(steps, lines, strict=True)
        ]
        lowest = min(point["perplexity"] for point in points)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"--metrics={path}: expected a file with the lines of tools/evaluate.py"
            f" ({error})"
        ) from error
    points.sort(key=lambda point: point["flops_per_token"])
    return [p | {"excess": p["perplexity"] / lowest - 1} for p in points]


def convergence(
    output: str,
    workdir: list[str],
    data: str | None = None,
    num_steps: tuple[str, ...] = ("8", "16", "32", "64", "128", "256"),
    num_sequences: int = 2,
) -> None:
    from diffeq_former import compilation_cache
    from diffeq_former.analysis.convergence import curves_of_solvers
    from diffeq_former.distributed.mesh import layout
    from diffeq_former.training import run_directory

    compilation_cache.enable()
    path, folder = plotting.new_plot(output), workdir[0]
    counts = sorted(cli.whole_numbers("num_steps", num_steps))
    if workdir[1:]:
        raise UserError(f"--workdir={workdir[1]}: convergence takes one run")
    own = run_directory.read_config(Path(folder))
    if own.model.stabilisers.residual != 1 or own.model.stabilisers.norm == "post":
        raise UserError(
            f"{folder} has {own.model.stabilisers}, with which its steps near"
            " no flow; use a run with residual 1, and norm pre or none"
        )
    run = mesh_flags.load_run(folder)
    tokens_BL = _tokens(run, data, num_sequences)
    with layout(run.mesh):
        curves = curves_of_solvers(run.config.model, run.params, tokens_BL, counts)
    with plotting.saved_figure(path) as axes:
        for curve, style in zip(curves, cycle(plotting.STYLES)):
            order = curve["measured_order"]
            label = curve["solver"] + ("" if order is None else f" ({order:.2f})")
            axes.plot(curve["num_steps"], curve["errors"], style, label=label)
        axes.set(xlabel="solver steps", ylabel="relative error of the state at the end")
        axes.set(xscale="log", yscale="log")
        axes.minorticks_off()
        axes.set_xticks(counts, labels=counts)
        axes.grid(alpha=0.3)
        axes.legend(title="solver (measured order)")
    _print(curves)


def _tokens(run, data: str | None, num_sequences: int):
    """Return the first validation sequences, at least as many as there are shards."""
    from diffeq_former.data.pipeline import validation_batches
    from diffeq_former.distributed.mesh import check_length_fits, num_batch_shards
    from diffeq_former.inference.resolve_dataset import load_dataset

    dataset = load_dataset(run, data).sources[0]
    shards = num_batch_shards(run.mesh)
    check_length_fits(run.config.training, run.mesh, dataset.seq_len)
    batch_size = -(-num_sequences // shards) * shards
    return next(iter(validation_batches(dataset, batch_size=batch_size)))["inputs"]


def trend(output: str, comparison: list[str]) -> None:
    from diffeq_former.experiments.comparison import trend

    path = plotting.new_plot(output)
    rows = trend.read([Path(folder) for folder in comparison])
    trend.plot(rows, path)
    _print(rows)


def _print(lines) -> None:
    for line in lines:
        print_line(line)


MODES = {mode.__name__: mode for mode in (losses, depth, convergence, trend)}

if __name__ == "__main__":
    cli.run_modes(MODES)
