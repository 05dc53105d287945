"""OpenWebText, Llamas of 16 x 2048 (Table 2, Figures 8, 11 and 12 of the paper).

    python -m diffeq_former.main --config=configs/paper/llama1b.py \
        --workdir=runs/llama1b --config.data.path=data/openwebtext_llama

The data are tokenised with --tokenizer=hf:NousResearch/Llama-2-7b-hf --seq_len=2048.

Variants, as in configs/paper/llama1b.py:baseline:
  ours      DiffEqFormer, 6,641,554,976 parameters; the default
  baseline  Llama, 1,204,881,408

Settings: both have beta2 = 0.95, as in the released YAML and, without the value, in the
paper's text. By the text, all models have the same weight decay and dropout, the Llama
included: 0.1 and 0.1. The YAML has a decay of 1e-5, and the released Llama no dropout:
--config.optimizer.weight_decay=1e-5 --config.model.dropout=0

Hardware: as configs/llama1b.py; the paper used eight H100 with 80 GB.
Time: as configs/llama1b.py; eight H100 have the same 989 TFLOP/s each.
Result: the authors' plots end at a validation perplexity of 9.69 (baseline: 10.18).
"""

from pathlib import Path

from diffeq_former.config.variants import BASELINE, apply_variant, base_config

VARIANTS = {"ours": {}, "baseline": BASELINE}


def get_config(variant="ours"):
    config = base_config(Path(__file__).parents[1] / "llama1b.py")
    config.model.dropout = 0.1
    return apply_variant(config, variant, VARIANTS)
