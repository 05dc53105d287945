"""Trains a model, or goes on with it where the folder's run stands.

python -m diffeq_former.main --config=configs/tiny.py --workdir=runs/tiny \
  --config.data.path=data/stdlib [--config.SECTION.FIELD=VALUE ...]

Exits with 0 when done, 2 for wrong input (also a model that the devices' memory cannot
hold, with what would spare some), 75 when it was stopped by SIGTERM, SIGUSR1 or Ctrl-C
(a second one ends it at once); everything is saved then, and the same command
continues. It also continues after 1: a data worker died, or data did not come. Of
several processes, which the scripts in launch/ start, each runs this command; when one
fails, all end, with another exit code, and all must be started again. While a run goes
on, another one in the same folder is refused.
"""

from pathlib import Path

from absl import flags
from ml_collections import config_flags

from diffeq_former import cli
from diffeq_former.cli import process_flags
from diffeq_former.training.preemption import StopRequest

_CONFIG = config_flags.DEFINE_config_file("config", None, "A file in configs/.")
_WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder.", required=True)
_ALLOW_CONFIG_CHANGE = flags.DEFINE_bool(
    "allow_config_change", False, "Go on with a run whose config was another one."
)
flags.mark_flag_as_required("config")
flags.adopt_module_key_flags(process_flags)

_stop = StopRequest()


def main() -> int:
    from diffeq_former import compilation_cache
    from diffeq_former.analysis.during_training import make_analyse
    from diffeq_former.config import resolve
    from diffeq_former.data import dataset as datasets
    from diffeq_former.distributed.mesh import check_fits, make_mesh
    from diffeq_former.errors import OutOfMemoryError, UserError
    from diffeq_former.finetuning import base
    from diffeq_former.inference.perplexity import make_evaluate
    from diffeq_former.inference.text import make_sampler
    from diffeq_former.training import loop, run_directory, state
    from diffeq_former.training.evaluation_hooks import EvaluationHooks

    process_flags.start_from_flags(_stop)
    compilation_cache.enable()
    config = resolve(_CONFIG.value)
    if not config.data.path:
        raise UserError(
            "config.data.path is empty: name the folder of a dataset; make one with"
            " tools/prepare_data.py --source=... --tokenizer=... --output=DIR"
        )
    dataset = datasets.load(config.data.path)
    workdir, first_state = Path(_WORKDIR.value), state.create
    if config.finetune.base:
        config, first_state = base.complete(config, workdir, dataset), base.first_state
    config = run_directory.fit(config, dataset)
    mesh = make_mesh(config.mesh)
    check_fits(config, mesh, dataset.seq_len)
    samples = config.training.sample_every > 0
    hooks = EvaluationHooks(
        evaluate=make_evaluate(config, dataset, mesh),
        sample=make_sampler(config, mesh, dataset.tokenizer()) if samples else None,
        analyse=make_analyse(config, dataset, mesh) if config.analysis_every else None,
    )
    try:
        return loop.train(
            config,
            workdir,
            dataset,
            mesh,
            hooks,
            _stop,
            first_state=first_state,
            allow_config_change=_ALLOW_CONFIG_CHANGE.value,
        )
    except OutOfMemoryError as error:
        from diffeq_former.planning.out_of_memory import advice

        lines = advice(config, mesh, dataset.seq_len)
        raise OutOfMemoryError(f"{error}\n{lines}") from error


if __name__ == "__main__":
    _stop.install()  # before all that takes time
    cli.run(main)
