"""OpenWebText, models of the size of GPT-2 small (Table 2 of the paper).

    python -m diffeq_former.main --config=configs/paper/openwebtext_small.py \
        --workdir=runs/openwebtext_small --config.data.path=data/openwebtext

Variants, as in configs/paper/openwebtext_small.py:baseline:
  ours      DiffEqFormer, 188,254,152 parameters; the default
  baseline  GPT-2 small, 124,439,808

Settings: those of the released YAML, with which the paper's text agrees where it gives
them.

Hardware: as configs/gpt_small.py.
Time: as configs/gpt_small.py; 10 hours at 40 % of the paper's two A100 (312 TFLOP/s
each).
Result: the authors' plots end at a validation perplexity of 22.1 (baseline: 22.6).
"""

from pathlib import Path

from diffeq_former.config.variants import BASELINE, apply_variant, base_config

VARIANTS = {"ours": {}, "baseline": BASELINE}


def get_config(variant="ours"):
    config = base_config(Path(__file__).parents[1] / "gpt_small.py")
    return apply_variant(config, variant, VARIANTS)
