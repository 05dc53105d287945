"""Evaluates a run's latest checkpoint on the whole validation split of a dataset.

tools/evaluate.py --workdir=runs/tiny --num_steps=6,8,16

Each line on stdout is one JSON object: split, step, num_steps, loss (nats per token),
perplexity, bits_per_byte, tokens, and flops_per_token of the forward pass; of a mixture
of datasets also those of each, such as loss/NAME (docs/training.md). With
--num_steps and --solver, the same continuous model is integrated with other numbers of
steps, and by another solver, than in training; tools/plot.py depth plots the result.
With --rtol, steps adapt to each batch, and lines have rtol and num_evaluations, the
mean number of evaluations of the vector field for a batch, in place of num_steps:

tools/evaluate.py --workdir=runs/tiny --solver=diffrax:Tsit5 --rtol=1e-3

With --exit_threshold, a token takes no further step once its prediction changes less,
and lines have exit_threshold and mean_num_steps in place of flops_per_token.

The mesh is that of the run; if it does not fit the devices, choose another one as in
training: --config.mesh.data=1 --config.mesh.fsdp=-1. With several processes, started as
in training, only the first one prints.
"""

import itertools
from pathlib import Path

from absl import flags

from diffeq_former import cli
from diffeq_former.cli import mesh_flags, process_flags
from diffeq_former.json_io import print_line

_WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder.", required=True)
_DATA = flags.DEFINE_string(
    "data",
    None,
    "A prepared dataset with the run's tokenizer; by default that of the run.",
)
_NUM_STEPS = flags.DEFINE_list(
    "num_steps",
    None,
    "Numbers of solver steps, such as 9,12,18; by default that of the run.",
)
_BATCH_SIZE = flags.DEFINE_integer(
    "batch_size",
    None,
    "Sequences per batch; by default those of a micro-batch of training.",
)
_SOLVER = flags.DEFINE_string(
    "solver",
    None,
    "The solver, such as heun or diffrax:Tsit5; by default that of the run.",
)
_RTOL = flags.DEFINE_multi_float(
    "rtol", [0.0], "Tolerance of adaptive steps, can be repeated; 0: they do not adapt."
)
_EXIT = flags.DEFINE_multi_float(
    "exit_threshold",
    [0.0],
    "Change of a prediction, in nats, below which a token exits; can be repeated; 0:"
    " tokens take all steps.",
)
flags.adopt_module_key_flags(process_flags)
flags.adopt_module_key_flags(mesh_flags)


def main() -> None:
    from diffeq_former import compilation_cache
    from diffeq_former.distributed.multihost import is_primary
    from diffeq_former.inference.perplexity import SPLIT
    from diffeq_former.inference.resolve_dataset import load_dataset
    from diffeq_former.inference.solver_steps import at_depth
    from diffeq_former.training import run_directory
    from diffeq_former.training.flops import forward_flops_per_token

    process_flags.start_from_flags()
    compilation_cache.enable()
    config = run_directory.read_config(Path(_WORKDIR.value))
    num_steps = cli.whole_numbers("num_steps", _NUM_STEPS.value)
    solver = _SOLVER.value
    models = [at_depth(config.model, n, solver) for n in num_steps or [None]]
    run = mesh_flags.load_run(_WORKDIR.value)
    dataset = load_dataset(run, _DATA.value)
    for model, rtol, threshold in itertools.product(models, _RTOL.value, _EXIT.value):
        metrics = run.evaluate(
            model.num_layers,
            data=_DATA.value,
            batch_size=_BATCH_SIZE.value,
            solver=solver,
            rtol=rtol,
            exit_threshold=threshold,
        )
        line = {"split": SPLIT, "step": run.step}
        if solver is not None:
            line["solver"] = solver
        line |= {"rtol": rtol} if rtol else {"num_steps": model.num_layers}
        line |= metrics
        if threshold:
            line["exit_threshold"] = threshold
        else:
            evaluations = metrics.get("num_evaluations")
            flops = forward_flops_per_token(model, dataset.seq_len, evaluations)
            line["flops_per_token"] = flops
        if is_primary():
            print_line(line)


if __name__ == "__main__":
    cli.run(main)
