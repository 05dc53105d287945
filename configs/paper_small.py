"""The paper's recipe at the size of a laptop: width 128, 8 steps, E = 48, length 128.

    python -m diffeq_former.main --config=configs/paper_small.py --workdir=runs/paper \
        --config.data.path=data/books

The baseline, a plain transformer with the same best learning rate:

    ... --config.model.weights=layer_table --config.model.solver=lie_trotter

Data: any text, prepared with 4,096 SentencePiece pieces and --seq_len=128.
Hardware: 2 CPU cores.
Time: about one second per step on one core, half an hour in all.
Result: 4.255 nats per token after 2,000 steps (baseline: 4.353), see docs/results.md.
"""

from diffeq_former.config import default_config


def get_config():
    config = default_config()
    config.model.num_layers = 8
    config.model.d_model = 128
    config.model.num_heads = 4
    config.model.vocab_size = 4096
    config.model.max_len = 128
    config.model.time_embed_dim = 48
    config.model.dtype = "float32"
    config.model.remat = "dots"  # on a CPU a quarter faster than "none"
    config.optimizer.learning_rate = 2e-3
    config.optimizer.bank_multiplier = 0.3
    config.training.num_steps = 2000
    config.training.batch_size = 16  # 2,048 tokens per step, 4.1M in all
    config.training.eval_every = 250
    config.training.checkpoint_every = 250
    return config
