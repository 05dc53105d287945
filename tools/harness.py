r"""Evaluates runs' latest checkpoints on tasks of EleutherAI's lm-evaluation-harness.

tools/harness.py --workdir=runs/gpt_small --tasks=arc_easy,piqa,lambada_openai \
  --num_fewshot=0,5 --num_steps=6,12
tools/harness.py --workdir=runs/gpt_large-baseline --workdir=runs/gpt_large \
  --num_fewshot=0,5 --paper=gpt_large --output=tasks.png

Each line on stdout is one JSON object: workdir, num_steps, task, num_fewshot, samples,
and the metrics of the task with their standard errors; parts of a group name it.
--tasks takes the tasks, groups and tags of the installed harness and of the YAML files
in --include_path; by default the paper's eleven (C.7). --output draws accuracies with
standard errors (with the extra plot), with --paper beside those of the paper (figures 9
to 12).

The data of the tasks are loaded from the Hugging Face hub. Without network access, pass
--task_data, a folder of datasets laid out as on the hub: for example, its subfolder
allenai/ai2_arc contains parquet, JSON or CSV files named after their splits and, if a
task uses a dataset configuration, the README.md that assigns files to configurations.

Requires the extra harness. The mesh is that of the run; if it does not fit the devices,
choose another one as in training: --config.mesh.data=1 --config.mesh.fsdp=-1. With
several processes, started as in training, only the first one prints.
"""

import itertools
from pathlib import Path

from absl import flags

from diffeq_former import cli
from diffeq_former.analysis import downstream, plotting
from diffeq_former.cli import mesh_flags, process_flags
from diffeq_former.errors import UserError, require_extra
from diffeq_former.inference import harness_setup
from diffeq_former.json_io import print_line

_WORKDIR = flags.DEFINE_multi_string(
    "workdir", None, "A run's folder; may be given again.", required=True
)
_TASKS = flags.DEFINE_list("tasks", list(downstream.TASKS), "Names of tasks.")
_OUTPUT = flags.DEFINE_string("output", None, "A new .png file for a plot.")
_PAPER = flags.DEFINE_enum(
    "paper", None, list(downstream.PAPER), "The paper's scores to draw beside them."
)
_NUM_FEWSHOT = flags.DEFINE_list(
    "num_fewshot",
    None,
    "Numbers of examples before each question; by default that of each task.",
)
_NUM_STEPS = flags.DEFINE_list(
    "num_steps",
    None,
    "Numbers of solver steps, such as 9,12,18; by default that of the run.",
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 16, "Texts per batch.", lower_bound=1)
_MAX_NEW_TOKENS = flags.DEFINE_integer(
    "max_new_tokens",
    None,
    "Maximum number of tokens of an answer; by default that of each task.",
    lower_bound=1,
)
_LIMIT = flags.DEFINE_integer(
    "limit", None, "Number of samples per task; by default all.", lower_bound=1
)
_TASK_DATA = flags.DEFINE_string("task_data", None, "A folder with the tasks' data.")
_INCLUDE_PATH = flags.DEFINE_string(
    "include_path", None, "A folder of YAML files that define tasks."
)
flags.adopt_module_key_flags(process_flags)
flags.adopt_module_key_flags(mesh_flags)


def main() -> None:
    numbers = cli.whole_numbers("num_fewshot", _NUM_FEWSHOT.value, least=0) or [None]
    harness_setup.check_folders(
        "--", task_data=_TASK_DATA.value, include_path=_INCLUDE_PATH.value
    )
    if _PAPER.value and not _OUTPUT.value:
        raise UserError(f"--paper={_PAPER.value}: needs --output, the plot to write")
    picture = plotting.new_plot(_OUTPUT.value) if _OUTPUT.value else None
    with harness_setup.local_data(_TASK_DATA.value):
        lines = _evaluate(numbers)
    from diffeq_former.distributed.multihost import is_primary

    if picture and is_primary():
        paper = downstream.paper_lines(_PAPER.value) if _PAPER.value else []
        downstream.plot(picture, [*map(_named, lines), *paper])


def _named(line: dict) -> dict:
    return {"model": f"{line['workdir']}, {line['num_steps']} steps"} | line


def _evaluate(numbers: list[int | None]) -> list[dict]:
    from diffeq_former import compilation_cache
    from diffeq_former.distributed.multihost import is_primary
    from diffeq_former.inference.solver_steps import at_depth
    from diffeq_former.training import run_directory

    require_extra("harness", "lm_eval")
    from diffeq_former.inference import harness, harness_tasks

    process_flags.start_from_flags()
    compilation_cache.enable()
    num_steps = cli.whole_numbers("num_steps", _NUM_STEPS.value)
    configs = {
        workdir: run_directory.read_config(Path(workdir)).model
        for workdir in _WORKDIR.value
    }
    models = {
        workdir: [at_depth(model, n) for n in num_steps or [None]]
        for workdir, model in configs.items()
    }
    tasks = harness_tasks.Tasks(
        _TASKS.value, include_path=_INCLUDE_PATH.value, data=_TASK_DATA.value
    )
    lines = []
    for workdir, of_run in models.items():
        run = mesh_flags.load_run(workdir)
        for model, num_fewshot in itertools.product(of_run, numbers):
            scorer = harness.HarnessModel(
                model, run.params, run.tokenizer, run.mesh, _BATCH_SIZE.value
            )
            for metrics in tasks.evaluate(
                scorer, num_fewshot, _LIMIT.value, _MAX_NEW_TOKENS.value
            ):
                line = {"workdir": workdir, "num_steps": model.num_layers, **metrics}
                if is_primary():
                    print_line(line)
                lines.append(line)
    return lines


if __name__ == "__main__":
    cli.run(main)
