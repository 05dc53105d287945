"""DiffEqFormer of the size of GPT-2 large (36 x 1280) on OpenWebText, as in the paper.

    python -m diffeq_former.main --config=configs/gpt_large.py \
        --workdir=runs/gpt_large --config.data.path=data/openwebtext

Baseline (GPT-2 large): --config.model.weights=layer_table
--config.model.solver=lie_trotter --config.optimizer.b2=0.999

Hardware: GPUs with 80 GB. 1,974,541,760 parameters x 12 bytes (values, two
moments) = 24 GB on each; activations add to this and shrink with more micro-batches.
Time: 6 x 772M weights + 12 x 36 x 1280 x 1024 for attention = 5.2 GFLOP per token,
x 10.5e9 tokens = 5.5e19 FLOP: 38 hours at 40 % of 989 TFLOP/s (one H100).
Result: the authors' plots show a validation perplexity of 18.65 after the first 20,000
steps of a run (GPT-2: 18.55). The paper then lowers beta2, as this config does.
"""

from diffeq_former.config import default_config


def get_config():
    config = default_config()
    config.model.num_layers = 36
    config.model.d_model = 1280
    config.model.num_heads = 20
    config.model.time_embed_dim = 96
    config.model.dropout = 0.1
    config.model.remat = "dots"
    config.optimizer.learning_rate = 3e-4
    config.optimizer.b2 = 0.95
    config.optimizer.eps = 1e-6
    config.training.num_steps = 40000  # x 256 x 1024 = 10.5e9 tokens
    config.training.batch_size = 256
    config.training.per_device_batch_size = 16
    config.training.eval_every = 500
    return config
