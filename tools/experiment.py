"""Trains several runs of one question, and plots what became of them.

tools/experiment.py ablation --config=configs/small.py --config.data.path=data/books \
  --vary=model.time_embed_dim=12,24,48,96 --output=runs/ablation
tools/experiment.py finetuning --config=configs/small.py --config.data.path=data/books \
  --data=data/wikitext --output=runs/study --full=training.num_steps=150 \
  --lora=training.num_steps=150

ablation trains --config with each value of one setting: the width of the time embedding
(figures 14 to 16 of the paper), the two designs of its MLP
(--vary=model.time_mlp=per_weight,shared; figure 18), Adam's second decay
(--vary=optimizer.b2=0.95,0.99,0.999; figure 7), or any other. A JSON object for each
run: the setting and its value, steps and losses (nats per token) of its evaluations,
perplexity (the last), tokens_per_second (median), parameters, and memory in GiB:
planned_memory_gib (of a step on one device, by the closed form of tools/plan.py),
host_memory_gib (measured, of the whole process) and device_memory_gib (measured, its
peak, where the device reports it).

finetuning is figure 5 of the paper (section 6.2) at the size of --config: a
DiffEqFormer, trained as by diffeq_former.main with the same --config flags, is
discretised into half, two thirds, as many and four thirds of its layers and tuned on
--data, in full and by LoRA; so is a plain transformer, in as many. A JSON object for
each run: model, mode, num_layers, and at the steps of its evaluations the validation
losses (nats per token), with the lowest and the last perplexity. --full and --lora
change configs/finetune/full.py and lora.py, and may be given again.

--output gets a folder for each run, figures.jsonl with what is printed, and a plot
(needs matplotlib: pip install -e '.[plot]'). Runs resume where they stand when the same
command is given again.
"""

import sys
from pathlib import Path

from absl import flags
from ml_collections import config_flags

from diffeq_former import cli
from diffeq_former.experiments.runs import config_arguments

config_flags.DEFINE_config_file("config", None, "The config of the runs.")
flags.DEFINE_string("output", None, "The folder of all runs.", required=True)
flags.DEFINE_string("vary", None, "ablation: SECTION.FIELD=VALUE,VALUE,...")
flags.DEFINE_string("data", None, "finetuning: prepared text to tune on.")
flags.DEFINE_multi_string("full", None, "finetuning: SECTION.FIELD=VALUE, in full.")
flags.DEFINE_multi_string("lora", None, "finetuning: SECTION.FIELD=VALUE, by LoRA.")

TUNING_CONFIGS = Path(__file__).parents[1] / "configs" / "finetune"


def ablation(config, output: str, vary: str) -> int:
    from diffeq_former.experiments import ablation

    return ablation.run(vary, Path(output), config_arguments(sys.argv))


def finetuning(config, output: str, data: str, full=(), lora=()) -> int:
    from diffeq_former.experiments import finetuning

    given, settings = config_arguments(sys.argv), {"full": full, "lora": lora}
    return finetuning.run(data, Path(output), given, TUNING_CONFIGS, settings)


MODES = {mode.__name__: mode for mode in (ablation, finetuning)}

if __name__ == "__main__":
    cli.run_modes(MODES)
