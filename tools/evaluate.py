"""Evaluates a run's latest checkpoint on the whole validation split of a dataset.

tools/evaluate.py --workdir=runs/tiny --num_steps=6,8,16

Each line on stdout is one JSON object: split, step, num_steps, loss (nats per token),
perplexity, bits_per_byte, tokens, and flops_per_token of the forward pass. With
--num_steps, the same continuous model is integrated with other numbers of solver steps
than in training; tools/plot.py depth plots the result. With --solver, a method of
diffrax integrates it, and lines have solver, rtol and num_evaluations, the mean number
of evaluations of the vector field for a batch, in place of the FLOPs:

tools/evaluate.py --workdir=runs/tiny --solver=diffrax:Tsit5 --rtol=1e-3

The mesh is that of the run; if it does not fit the devices, choose another one as in
training: --config.mesh.data=1 --config.mesh.fsdp=-1. With several processes, started as
in training, only the first one prints.
"""

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
    "A method of diffrax, such as diffrax:Tsit5; by default the run's solver.",
)
_RTOL = flags.DEFINE_float(
    "rtol",
    0.0,
    "With --solver: tolerance of adaptive steps; 0: --num_steps of equal length.",
)
flags.adopt_module_key_flags(process_flags)
flags.adopt_module_key_flags(mesh_flags)


def main() -> None:
    from diffeq_former import compilation_cache
    from diffeq_former.distributed.multihost import is_primary
    from diffeq_former.inference.perplexity import SPLIT
    from diffeq_former.inference.resolve_dataset import load_dataset
    from diffeq_former.inference.solver_steps import models_with_steps
    from diffeq_former.training import run_directory
    from diffeq_former.training.flops import forward_flops_per_token

    process_flags.start_from_flags()
    compilation_cache.enable()
    config = run_directory.read_config(Path(_WORKDIR.value))
    num_steps = cli.whole_numbers("num_steps", _NUM_STEPS.value)
    models = models_with_steps(config.model, num_steps)
    run = mesh_flags.load_run(_WORKDIR.value)
    dataset = load_dataset(run, _DATA.value)
    for model in models:
        steps = model.num_layers
        metrics = run.evaluate(
            steps,
            data=_DATA.value,
            batch_size=_BATCH_SIZE.value,
            solver=_SOLVER.value,
            rtol=_RTOL.value,
        )
        line = {"split": SPLIT, "step": run.step, "num_steps": steps, **metrics}
        if _SOLVER.value is None:
            line["flops_per_token"] = forward_flops_per_token(model, dataset.seq_len)
        else:
            line |= {"solver": _SOLVER.value, "rtol": _RTOL.value}
        if is_primary():
            print_line(line)


if __name__ == "__main__":
    cli.run(main)
