r"""Trains several runs of one question, and plots what became of them.

tools/experiment.py ablation --config=configs/small.py --config.data.path=data/books \
  --vary=model.time_embed_dim=12,24,48,96 --baseline --output=runs/ablation
tools/experiment.py sizes --config=configs/paper/wikitext_medium.py --baseline \
  --vary=model.time_embed_dim=20,48,96 --target=gpu:a100:1x2 --output=runs/sizes
tools/experiment.py comparison --config=configs/small.py \
  --config.data.path=data/books --study=configs/studies/sizes.py \
  --held_out=data/held-out --num_seeds=3 --num_parallel=2 --output=runs/comparison
tools/experiment.py finetuning --config=configs/small.py --config.data.path=data/books \
  --data=data/wikitext --output=runs/study --full=training.num_steps=150 \
  --lora=training.num_steps=150
tools/experiment.py paper --config=configs/paper_small.py \
  --config.data.path=data/books --data=data/wikitext --num_seeds=3 --output=runs/paper

ablation trains --config with each value of one setting: the width of the time embedding
(figures 14 and 15 of the paper), the two designs of its MLP
(--vary=model.time_mlp=per_weight,shared; figure 18), Adam's second decay
(--vary=optimizer.b2=0.95,0.99,0.999; figure 7), or any other. With --baseline, the
plain transformer is trained, too: with each value, or once if it has no such setting. A
JSON object for each run: model, plain, the setting and its value, seed, steps and
losses (nats per token) of its evaluations, perplexity (the last), tokens_per_second
(median), parameters, weights_per_token (applied to each token), and memory in GiB:
planned_memory_gib (of a step on one device, by the closed form of tools/plan.py),
host_memory_gib (measured, of the whole process) and device_memory_gib (measured, its
peak, where the device reports it).

sizes trains nothing: it reports the parameters of the same models (table 6) and the
memory of a training step on the devices of --target (figure 16; see tools/plan.py), by
the closed form and, with --compile, as compiled for them.

comparison trains the models of a --study file, each with the best of the settings that
the file searches for it, and compares their losses on --held_out with those of a
baseline, paired by seed (docs/experiments.md). A JSON object for each model: settings
(the best), seeds, held_out_loss (nats per token, the mean) and its standard deviation,
the difference to the baseline with its 95 % confidence interval and two-sided p value,
and perplexity_ratio. --output also gets table.md, trials.csv and finals.csv with a row
for each run, comparison.png and searches.png. A study may only search; then the object
of each model has the best value, the interpolated optimum, its ratio to the baseline's,
and the excess of the loss at the baseline's best value.

finetuning is figure 5 of the paper (section 6.2) at the size of --config: a
DiffEqFormer, trained as by diffeq_former.main with the same --config flags, is
discretised into half, two thirds, as many and four thirds of its layers and tuned on
--data, in full and by LoRA; so is a plain transformer, in as many as it has. Then the
two texts change places. A JSON object for each run: direction, model, mode, num_layers,
seed, and at the steps of its evaluations the validation losses (nats per token), with
the lowest and the last perplexity. --full and --lora change configs/finetune/full.py
and lora.py, and may be given again.

paper trains all models that the paper's figures and tables compare, at the size of
--config, and writes a page with their plots, analyses of the first two, and a verdict
on each claim.

--plain changes settings of the plain transformer alone (--plain=optimizer.b2=0.999).
--num_seeds trains each run with several seeds, from config.seed on; plots then show
means and ranges. --num_parallel trains several runs at the same time, each on its own
equal share of the cores; the messages of each are then in a .log file beside its
folder. --output gets a folder for each run, figures.jsonl with what is printed, and a
plot (with the extra plot); of the paper, folders runs and page; of a comparison, the
runs are in trials and finals. Runs resume where they stand when the same command is
given again.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags
from ml_collections import config_flags

from diffeq_former import cli
from diffeq_former.errors import UserError

config_flags.DEFINE_config_file("config", None, "The config of the runs.")
flags.DEFINE_string("output", None, "The folder of all runs.")
flags.DEFINE_string("vary", None, "ablation, sizes: SECTION.FIELD=VALUE,VALUE,...")
flags.DEFINE_bool("baseline", False, "ablation, sizes: also the plain transformer.")
flags.DEFINE_string("target", None, "sizes: devices, as of tools/plan.py.")
flags.DEFINE_integer("num_slices", 1, "sizes: slices of TPUs.", lower_bound=1)
flags.DEFINE_bool("compile", False, "sizes: compile for the target.")
flags.DEFINE_string("data", None, "finetuning, paper: prepared text to tune on.")
flags.DEFINE_multi_string("full", None, "SECTION.FIELD=VALUE of tuning in full.")
flags.DEFINE_multi_string("lora", None, "SECTION.FIELD=VALUE of tuning by LoRA.")
flags.DEFINE_multi_string(
    "plain", None, "SECTION.FIELD=VALUE of the plain transformer."
)
flags.DEFINE_string("study", None, "comparison: a file such as configs/studies/*.py.")
flags.DEFINE_string("held_out", None, "comparison: prepared text of other documents.")
flags.DEFINE_integer("num_seeds", 1, "Seeds of each run.", lower_bound=1)
flags.DEFINE_integer(
    "num_parallel", 1, "Runs to train at the same time.", lower_bound=1
)

TUNING_CONFIGS = Path(__file__).parents[1] / "configs" / "finetune"


def ablation(
    config,
    output: str,
    vary: str,
    baseline=False,
    plain=(),
    num_seeds=1,
    num_parallel=1,
):
    from diffeq_former.experiments import ablation

    ablation.run(
        vary,
        _study(Path(output), num_parallel),
        config,
        _seeds(config, num_seeds),
        _of_baseline(baseline, plain),
    )


def sizes(
    config,
    output: str,
    vary: str,
    target: str,
    num_slices=1,
    compile=False,
    baseline=False,
    plain=(),
):
    from diffeq_former.experiments import sizes
    from diffeq_former.planning.targets import parse_target

    sizes.run(
        vary,
        Path(output),
        config,
        parse_target(target, num_slices),
        _of_baseline(baseline, plain),
        compile,
    )


def _of_baseline(baseline: bool, plain: Sequence[str]) -> Sequence[str] | None:
    if plain and not baseline:
        raise UserError(f"--plain={plain[0]}: needs --baseline")
    _check_settings(plain=plain)
    return plain if baseline else None


def _check_settings(**settings: Sequence[str]) -> None:
    """Check the fields in the values of flags, before anything is trained."""
    from diffeq_former.config.loading import check_settings

    for flag, values in settings.items():
        check_settings(values, flag=flag)


def comparison(
    config, output: str, study: str, held_out=None, num_seeds=1, num_parallel=1
):
    from diffeq_former import compilation_cache
    from diffeq_former.experiments.comparison import run_study

    compilation_cache.enable()
    run_study.run(
        config,
        study,
        held_out,
        _study(Path(output), num_parallel),
        _seeds(config, num_seeds),
    )


def finetuning(
    config,
    output: str,
    data: str,
    full=(),
    lora=(),
    plain=(),
    num_seeds=1,
    num_parallel=1,
):
    from diffeq_former.experiments import finetuning

    _check_settings(full=full, lora=lora, plain=plain)
    finetuning.run(
        config,
        data,
        _study(Path(output), num_parallel),
        TUNING_CONFIGS,
        {"full": full, "lora": lora, "plain": plain},
        _seeds(config, num_seeds),
    )


def paper(
    config, output: str, data: str, full=(), lora=(), num_seeds=1, num_parallel=1
):
    from diffeq_former import compilation_cache
    from diffeq_former.config import resolve
    from diffeq_former.experiments.paper import page

    _check_settings(full=full, lora=lora)
    compilation_cache.enable()
    page.run(
        resolve(config),
        data,
        Path(output),
        _study(Path(output) / page.RUNS, num_parallel),
        TUNING_CONFIGS,
        {"full": full, "lora": lora},
        _seeds(config, num_seeds),
    )


def _study(folder: Path, num_parallel: int):
    from diffeq_former.experiments.runs import Study, config_arguments

    return Study(folder, config_arguments(sys.argv), num_parallel)


def _seeds(config, num_seeds: int) -> range:
    return range(config.seed, config.seed + num_seeds)


MODES = (ablation, sizes, comparison, finetuning, paper)

if __name__ == "__main__":
    cli.run_modes({mode.__name__: mode for mode in MODES})
