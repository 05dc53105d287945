"""A small DiffEqFormer that learns to write Python-like text within minutes on a CPU.

    python -m diffeq_former.main --config=configs/tiny.py --workdir=runs/tiny \
        --config.data.path=data/stdlib

Hardware: 2 CPU cores.
Time: tbd
Result: tbd
"""

from diffeq_former.config import default_config


def get_config():
    config = default_config()
    config.data.path = "data/stdlib"
    config.model.num_layers = 6
    config.model.d_model = 128
    config.model.num_heads = 4
    config.model.vocab_size = 4096
    config.model.max_len = 128
    config.model.time_embed_dim = 32
    config.model.dtype = "float32"
    config.optimizer.learning_rate = 4e-3
    config.optimizer.bank_multiplier = 0.3
    config.training.num_steps = 500
    config.training.batch_size = 16
    config.training.eval_every = 250
    config.training.checkpoint_every = 250
    return config
