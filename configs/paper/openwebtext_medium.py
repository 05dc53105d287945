"""OpenWebText, models of the size of GPT-2 medium (Table 2 of the paper).

    python -m diffeq_former.main --config=configs/paper/openwebtext_medium.py \
        --workdir=runs/openwebtext_medium --config.data.path=data/openwebtext

Variants, as in configs/paper/openwebtext_medium.py:baseline:
  ours      DiffEqFormer, 1,274,538,688 parameters; the default
  baseline  GPT-2 medium, 354,823,168

Settings: those of the released YAML, with which the paper's text agrees where it gives
them. The text does not give E; the YAML has 96, but the authors' notebooks have 144:
--config.model.time_embed_dim=144

Hardware: as configs/gpt_medium.py.
Time: as configs/gpt_medium.py; 28 hours at 40 % of the paper's two A100 (312 TFLOP/s
each).
Result: a validation perplexity below that of openwebtext_small (22.1); no plot of this
run is known.
"""

from pathlib import Path

from diffeq_former.config.variants import BASELINE, apply_variant, base_config

VARIANTS = {"ours": {}, "baseline": BASELINE}


def get_config(variant="ours"):
    config = base_config(Path(__file__).parents[1] / "gpt_medium.py")
    return apply_variant(config, variant, VARIANTS)
