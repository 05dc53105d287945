"""Full fine-tuning of a run: as it is, or discretised into layers.

    python -m diffeq_former.main --config=configs/finetune/full.py \
        --workdir=runs/tuned --config.data.path=data/other \
        --config.finetune.base=runs/small --config.finetune.num_steps=12

The base run determines the model. Without num_steps the model stays as it is: a
hypernetwork remains one, and can be discretised at any depth afterwards.

Data: any text, prepared with the base's tokenizer.
Hardware: as for the base.
Time: about 2 min on one core for 150 steps of a discretised configs/small.py.
Result: starts at the base's loss; see docs/experiments.md.
"""

from diffeq_former.config import default_config


def get_config():
    config = default_config()
    config.model.remat = "dots"
    config.optimizer.learning_rate = 1e-4
    config.optimizer.warmup_fraction = 0.05
    config.training.num_steps = 1000
    config.training.batch_size = 16
    config.training.eval_every = 100
    config.training.checkpoint_every = 100
    return config
