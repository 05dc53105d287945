r"""Train a model, or resume the run in the given folder.

python -m diffeq_former.main --config=configs/tiny.py --workdir=runs/tiny \
  --config.data.path=data/stdlib [--config.SECTION.FIELD=VALUE ...]

Exit codes:
  0: training is finished.
  1: data did not arrive; the same command resumes the run.
  2: the input is wrong, or the model does not fit into the devices' memory; in the
    latter case the message lists settings that need less memory.
  75: the run was stopped by SIGTERM, SIGUSR1 or Ctrl-C (a second Ctrl-C ends it at
    once). Everything is saved, and the same command resumes the run.

A run of several processes executes this command in each of them; the scripts in launch/
start them. When one process fails, all end with another exit code, and all must be
started again. While a run is active, a second one in the same folder is refused.
"""

from diffeq_former.training.preemption import StopRequest

_stop = StopRequest()
if __name__ == "__main__":
    _stop.install()  # before the slow imports, so that no signal is lost

from pathlib import Path  # noqa: E402

from absl import flags  # noqa: E402
from ml_collections import config_flags  # noqa: E402

from diffeq_former import cli  # noqa: E402
from diffeq_former.cli import process_flags  # noqa: E402

_CONFIG = config_flags.DEFINE_config_file("config", None, "A file in configs/.")
_WORKDIR = flags.DEFINE_string("workdir", None, "The run directory.", required=True)
_ALLOW_CONFIG_CHANGE = flags.DEFINE_bool(
    "allow_config_change", False, "Resume a run although its config has changed."
)
flags.mark_flag_as_required("config")
flags.adopt_module_key_flags(process_flags)


def main() -> int:
    from diffeq_former import compilation_cache
    from diffeq_former.distributed.mesh import check_fits, make_mesh
    from diffeq_former.errors import OutOfMemoryError
    from diffeq_former.inference.harness_setup import local_data
    from diffeq_former.planning.out_of_memory import advice, check_memory
    from diffeq_former.training import loop

    process_flags.start_from_flags(_stop)
    compilation_cache.enable()
    workdir = Path(_WORKDIR.value)
    config, dataset, first_state = _resolve(workdir)
    mesh = make_mesh(config.mesh)
    check_fits(config, mesh, dataset.seq_len)
    check_memory(config, mesh, dataset.seq_len)
    try:
        with local_data(config.harness.task_data if config.harness.every else None):
            code = loop.train(
                config,
                workdir,
                dataset,
                mesh,
                _make_hooks(config, dataset, mesh),
                _stop,
                first_state=first_state,
                allow_config_change=_ALLOW_CONFIG_CHANGE.value,
            )
        _stop.ignore()  # all is saved
        return code
    except OutOfMemoryError as error:
        lines = advice(config, mesh, dataset.seq_len)
        raise OutOfMemoryError(f"{error}\n{lines}") from error


def _make_hooks(config, dataset, mesh):
    """Return the evaluations that the config asks for."""
    from diffeq_former.analysis.during_training import make_analysis
    from diffeq_former.inference.perplexity import make_evaluate
    from diffeq_former.inference.text import make_sampler
    from diffeq_former.training.evaluation_hooks import EvaluationHooks

    sample = analyse = harness = None
    if config.training.sample_every:
        sample = make_sampler(config, mesh, dataset.tokenizer())
    if config.analysis_every:
        analyse = make_analysis(config, dataset, mesh)
    if config.harness.every:
        harness = _make_harness(config, dataset, mesh)
    evaluate = make_evaluate(config, dataset, mesh)
    return EvaluationHooks(evaluate, sample, analyse, harness)


def _make_harness(config, dataset, mesh):
    from diffeq_former.errors import require_extra
    from diffeq_former.inference.harness_setup import check_folders

    c = config.harness
    require_extra("harness", "lm_eval")
    check_folders("config.harness.", task_data=c.task_data, include_path=c.include_path)
    from diffeq_former.inference.harness_hook import make_harness

    return make_harness(c, config.model, dataset.tokenizer(), mesh)


def _resolve(workdir: Path):
    """Return the config, completed by what it names: the dataset and the base run.

    Returns:
      The config, the dataset, and the function that creates the initial state.
    """
    from diffeq_former.config import resolve
    from diffeq_former.finetuning import base
    from diffeq_former.inference.resolve_dataset import load_configured
    from diffeq_former.training import run_directory, state

    config, first_state = resolve(_CONFIG.value), state.create
    dataset = load_configured(config.data)
    if config.finetune.base:
        overrides = config_flags.get_override_values(flags.FLAGS["config"])
        config = base.complete(config, workdir, dataset, overrides)
        first_state = base.first_state
    return run_directory.fit(config, dataset), dataset, first_state


if __name__ == "__main__":
    cli.run(main)
