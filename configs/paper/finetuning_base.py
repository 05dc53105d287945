"""The models that section 6.2 of the paper fine-tunes (Figure 5): their pre-training.

    python -m diffeq_former.main --config=configs/paper/finetuning_base.py \
        --workdir=runs/finetuning_base --config.data.path=data/wikitext103

Variants, as in configs/paper/finetuning_base.py:baseline:
  ours      DiffEqFormer in 18 steps, 1,325,088,104 parameters; the default
  baseline  GPT-2 medium with its 24 layers, 354,823,168

The paper pre-trains on WikiText-103 and tunes on OpenWebText, and the reverse; the
settings are the same on both. tools/experiment.py finetuning trains and tunes all.

Settings: the 18 steps, 24 layers and the sizes are in the paper's text; E = 100, 256
frequencies and 10,000 steps on either text are the released YAML's.

Hardware: GPUs with 80 GB. 1,325,088,104 parameters x 12 bytes = 16 GB on each.
Time: 6 x 278M weights + 12 x 18 x 1024 x 1024 for attention = 1.89 GFLOP per token,
x 2.6e9 tokens = 5.0e18 FLOP: 3.5 hours at 40 % of 989 TFLOP/s (one H100), 5.5 on the
paper's two A100 (312 TFLOP/s each). The baseline takes 4.5 and 7.
Result: no plot of the pre-training is known.
"""

from pathlib import Path

from diffeq_former.config.variants import BASELINE, apply_variant, base_config

VARIANTS = {"ours": {}, "baseline": BASELINE | {"model.num_layers": 24}}


def get_config(variant="ours"):
    config = base_config(Path(__file__).parents[1] / "gpt_medium.py")
    config.model.num_layers = 18
    config.model.time_embed_dim = 100
    config.model.num_frequencies = 256
    config.training.num_steps = 10000  # x 256 x 1024 = 2.6e9 tokens
    config.training.eval_every = 200
    return apply_variant(config, variant, VARIANTS)
