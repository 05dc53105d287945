"""LoRA: adapters of rank 8 on all linear maps of a run discretised into layers.

    python -m diffeq_former.main --config=configs/finetune/lora.py \
        --workdir=runs/tuned --config.data.path=data/other \
        --config.finetune.base=runs/small --config.finetune.num_steps=12

The base run determines the model; without num_steps it keeps its depth. Afterwards:

    python tools/convert.py merge_lora --workdir=runs/tuned --output=runs/merged
    python tools/convert.py export_adapter --workdir=runs/tuned --output=adapter

The second command requires a plain transformer as base: layer_table with lie_trotter.

Data: any text, prepared with the base's tokenizer.
Hardware: as for the base, without the memory for its moments and gradients.
Time: about 2 min on one core for 150 steps of a discretised configs/small.py.
Result: starts at the base's loss; see docs/experiments.md.
"""

from diffeq_former.config import default_config


def get_config():
    config = default_config()
    config.model.lora_rank = 8
    config.model.lora_alpha = 16.0
    config.model.lora_dropout = 0.05
    config.model.remat = "dots"
    config.optimizer.learning_rate = (
        1e-3  # larger than in full fine-tuning, as B starts at 0
    )
    config.optimizer.weight_decay = 0.0
    config.optimizer.warmup_fraction = 0.05
    config.training.num_steps = 1000
    config.training.batch_size = 16
    config.training.eval_every = 100
    config.training.checkpoint_every = 100
    return config
