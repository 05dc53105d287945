"""WikiText-103, models of the size of GPT-2 medium (Table 1 and Figure 4 of the paper).

    python -m diffeq_former.main --config=configs/paper/wikitext_medium.py \
        --workdir=runs/wikitext_medium --config.data.path=data/wikitext103

Variants, as in configs/paper/wikitext_medium.py:baseline:
  ours      DiffEqFormer, 669,803,872 parameters; the default
  baseline  GPT-2 medium, 354,823,168
  shared    GPT-2 medium whose layers have the same weights, 65,110,016

Settings: those of the released YAML, with which the paper's text agrees where it gives
them; E is 48, half of that on OpenWebText. The text does not say what shares parameters
in Table 1; we take the baseline.

Hardware: GPUs with 80 GB. 669,803,872 parameters x 12 bytes = 8 GB on each.
Time: 2.42 GFLOP per token, see configs/gpt_medium.py, x 2.6e9 tokens = 6.3e18 FLOP: 4.5
hours at 40 % of 989 TFLOP/s (one H100), 7 on the paper's two A100 (312 TFLOP/s each).
Result: in the authors' plots a validation perplexity of 22.2 at the end and 21.5 at
best (baseline: 24.95 and 23.4, because it overfits).
"""

from pathlib import Path

from diffeq_former.config.variants import BASELINE, SHARED, apply_variant, base_config

VARIANTS = {"ours": {}, "baseline": BASELINE, "shared": SHARED}


def get_config(variant="ours"):
    config = base_config(Path(__file__).parents[1] / "gpt_medium.py")
    config.model.time_embed_dim = 48
    config.training.num_steps = 10000  # x 256 x 1024 = 2.6e9 tokens
    config.training.eval_every = 200
    return apply_variant(config, variant, VARIANTS)
