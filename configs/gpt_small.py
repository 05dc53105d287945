"""DiffEqFormer of the size of GPT-2 small (12 x 768) on OpenWebText, as in the paper.

    python -m diffeq_former.main --config=configs/gpt_small.py \
        --workdir=runs/gpt_small --config.data.path=data/openwebtext

Baseline (GPT-2 small): --config.model.weights=layer_table
--config.model.solver=lie_trotter. Initialisation and weight decay of the authors' code:
--config.model.initialization=authors --config.optimizer.decay_mask=embeddings

Hardware: a GPU with 40 GB. 188,254,152 parameters x 12 bytes (values, two moments)
= 2.3 GB; activations add to this and shrink with per_device_batch_size.
Time: 6 x 124M weights + 12 x 12 x 768 x 1024 for attention = 854 MFLOP per token,
x 10.5e9 tokens = 9.0e18 FLOP: 6.3 hours at 40 % of 989 TFLOP/s (one H100).
Result: the authors' plots end at a validation perplexity of 22.1 (GPT-2: 22.6).
"""

from diffeq_former.config import default_config


def get_config():
    config = default_config()
    config.model.num_layers = 12
    config.model.d_model = 768
    config.model.num_heads = 12
    config.model.time_embed_dim = 20
    config.model.dropout = 0.1
    config.optimizer.learning_rate = 6e-4
    config.optimizer.b2 = 0.999
    config.training.num_steps = 20000  # x 512 x 1024 = 10.5e9 tokens
    config.training.batch_size = 512
    config.training.per_device_batch_size = 32
    config.training.eval_every = 500
    return config
