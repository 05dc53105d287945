"""WikiText-103, models of the size of GPT-2 small (Table 1 and Figure 4 of the paper).

    python -m diffeq_former.main --config=configs/paper/wikitext_small.py \
        --workdir=runs/wikitext_small --config.data.path=data/wikitext103

Variants, as in configs/paper/wikitext_small.py:baseline:
  ours      DiffEqFormer, 188,254,152 parameters; the default
  baseline  GPT-2 small, 124,439,808
  shared    GPT-2 small whose layers have the same weights, 46,473,216

Settings: those of the released YAML, with which the paper's text agrees where it gives
them. The text does not say what shares parameters in Table 1; we take the baseline.

Hardware: as configs/gpt_small.py.
Time: 854 MFLOP per token, see configs/gpt_small.py, x 2.6e9 tokens = 2.2e18 FLOP: 1.6
hours at 40 % of 989 TFLOP/s (one H100), 2.5 on the paper's two A100 (312 TFLOP/s each).
Result: the authors' plots end at a validation perplexity of 22.4 (baseline: 22.9).
"""

from pathlib import Path

from diffeq_former.config.variants import BASELINE, SHARED, apply_variant, base_config

VARIANTS = {"ours": {}, "baseline": BASELINE, "shared": SHARED}


def get_config(variant="ours"):
    config = base_config(Path(__file__).parents[1] / "gpt_small.py")
    config.training.num_steps = 10000  # x 256 x 1024 = 2.6e9 tokens
    config.training.batch_size = 256
    config.training.eval_every = 200
    return apply_variant(config, variant, VARIANTS)
