"""Draws how the state at the end of depth nears that of the flow as steps grow.

tools/convergence.py --workdir=runs/small --output=docs/convergence.png

A run's latest checkpoint is integrated by every solver in several numbers of steps; the
errors are relative to rk4's state in four times as many as the most. Each line on
stdout is one JSON object: solver, its order on smooth fields, num_steps, errors, and
the order that is measured (null: too few errors are small, and not rounding). A model
with fast sinusoids (model.time_scale) shows its orders only in steps that are short
against them.

The text is the first rows of the validation split; where the mesh of the run does not
suit the devices, choose another: --config.mesh.data=1 --config.mesh.fsdp=-1. Needs
matplotlib: pip install -e '.[plot]'.
"""

import json
from pathlib import Path

from absl import flags

from diffeq_former import cli
from diffeq_former.analysis import plotting
from diffeq_former.cli import mesh_flags
from diffeq_former.errors import UserError

_WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder.", required=True)
_DATA = flags.DEFINE_string("data", None, "A prepared dataset; else the run's own.")
_NUM_STEPS = flags.DEFINE_list(
    "num_steps", "8,16,32,64,128,256".split(","), "Numbers of steps."
)
_ROWS = flags.DEFINE_integer(
    "rows", 2, "Rows of the split; more where devices share them.", lower_bound=1
)
_OUTPUT = flags.DEFINE_string("output", None, "A new .png file.", required=True)
flags.adopt_module_key_flags(mesh_flags)


def main() -> None:
    from diffeq_former import compilation_cache
    from diffeq_former.distributed.mesh import layout, make_mesh
    from diffeq_former.training import run_directory

    compilation_cache.enable()
    output = plotting.new_picture(_OUTPUT.value)
    counts = _counts(_NUM_STEPS.value)
    own = run_directory.read_config(Path(_WORKDIR.value))
    if own.model.weights == "layer_table":
        raise UserError(
            f"{_WORKDIR.value} is a layer_table, which is no flow: it has no weights"
            " between its layers; use a run with other model.weights"
        )
    if own.model.stabilisers.residual != 1 or own.model.stabilisers.norm == "post":
        raise UserError(
            f"{_WORKDIR.value} has {own.model.stabilisers}, with which its steps near"
            " no flow; use a run with residual 1, and norm pre or none"
        )
    mesh = make_mesh(mesh_flags.mesh_from_flags(own))
    run = run_directory.load(_WORKDIR.value, mesh)
    path = Path(_DATA.value) if _DATA.value else run.dataset_path
    tokens_BL = _tokens(path, own.training, mesh)
    with layout(mesh):
        curves = _curves(run, tokens_BL, counts)
    _draw(curves, counts, output)
    for curve in curves:
        print(json.dumps(curve), flush=True)


def _counts(values: list[str]) -> list[int]:
    if not values or not all(v.isdecimal() and int(v) for v in values):
        raise UserError(
            f"--num_steps={','.join(values)}: expected whole numbers of 1 or more, "
            "separated by commas"
        )
    return sorted(map(int, values))


def _tokens(path: Path, training, mesh):
    from diffeq_former.data import dataset as datasets
    from diffeq_former.data.pipeline import validation_batches
    from diffeq_former.distributed.mesh import check_length_fits, num_row_shares

    dataset, shares = datasets.load(path), num_row_shares(mesh)
    check_length_fits(training, mesh, dataset.seq_len)
    rows = -(-_ROWS.value // shares) * shares
    batches = validation_batches(dataset, batch_size=rows)
    return next(iter(batches))["inputs"]


def _curves(run, tokens_BL, counts: list[int]) -> list[dict]:
    from diffeq_former.analysis import convergence
    from diffeq_former.ode.solvers import SOLVERS

    model, params = run.config.model, run.params
    exact = convergence.flow(model, params, tokens_BL, counts[-1])
    curves = []
    for name, solver in SOLVERS.items():
        states = (
            convergence.end_of_depth(model, params, tokens_BL, name, n) for n in counts
        )
        errors = [convergence.relative_error(x, exact) for x in states]
        measured = convergence.measured_order(counts, errors)
        curve = {"solver": name, "order": solver.order, "num_steps": counts}
        curves.append(curve | {"errors": errors, "measured_order": measured})
    return curves


def _draw(curves: list[dict], counts: list[int], output: Path) -> None:
    with plotting.drawn(output) as axes:
        for style, curve in zip(plotting.STYLES, curves, strict=True):
            order = curve["measured_order"]
            label = curve["solver"] + ("" if order is None else f" ({order:.2f})")
            axes.plot(curve["num_steps"], curve["errors"], style, label=label)
        axes.set(xlabel="solver steps", ylabel="relative error of the state at the end")
        axes.set(xscale="log", yscale="log")
        axes.minorticks_off()
        axes.set_xticks(counts, labels=counts)
        axes.grid(alpha=0.3)
        axes.legend(title="solver (measured order)")


if __name__ == "__main__":
    cli.run(main)
