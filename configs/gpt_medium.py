"""DiffEqFormer of the size of GPT-2 medium (24 x 1024) on OpenWebText, as in the paper.

    python -m diffeq_former.main --config=configs/gpt_medium.py \
        --workdir=runs/gpt_medium --config.data.path=data/openwebtext

Baseline (GPT-2 medium): --config.model.weights=layer_table
--config.model.solver=lie_trotter

Hardware: GPUs with 80 GB. 1,274,538,688 parameters x 12 bytes (values, two
moments) = 15 GB on each; activations add to this and shrink with more micro-batches.
Time: 6 x 354M weights + 12 x 24 x 1024 x 1024 for attention = 2.42 GFLOP per token,
x 10.5e9 tokens = 2.5e19 FLOP: 18 hours at 40 % of 989 TFLOP/s (one H100).
Result: a validation perplexity below that of gpt_small (22.1); no plot of
this run is known.
"""

from diffeq_former.config import default_config


def get_config():
    config = default_config()
    config.model.num_layers = 24
    config.model.d_model = 1024
    config.model.num_heads = 16
    config.model.time_embed_dim = 96
    config.model.dropout = 0.1
    config.optimizer.learning_rate = 3e-4
    config.optimizer.b2 = 0.999
    config.training.num_steps = 40000  # x 256 x 1024 = 10.5e9 tokens
    config.training.batch_size = 256
    config.training.per_device_batch_size = 16
    config.training.eval_every = 500
    return config
