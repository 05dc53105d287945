"""A small DiffEqFormer: width 128, 8 steps, E = 48, length 128; muP, Muon on W(t).

    python -m diffeq_former.main --config=configs/small.py --workdir=runs/small \
        --config.data.path=data/books

The plain transformer of the same width and depth:

    ... --config.model.weights=layer_table

Data: any text, prepared with 4,096 SentencePiece pieces and --seq_len=128.
Hardware: 2 CPU cores.
Time: about 0.4 seconds per step on one core, 14 minutes in all.
Result: 3.981 nats per token on held-out documents (plain: 3.982), see docs/results.md.
configs/paper_small.py is the paper's recipe at this size.
"""

from diffeq_former.config import default_config


def get_config():
    config = default_config()
    config.model.solver = "lie_trotter"
    config.model.num_layers = 8
    config.model.d_model = 128
    config.model.num_heads = 4
    config.model.vocab_size = 4096
    config.model.max_len = 128
    config.model.time_embed_dim = 48
    config.model.time_scale = 30.0  # W(t) that resolves 8 steps and is smooth
    config.model.dtype = "float32"
    config.model.remat = "dots"  # on a CPU a quarter faster than "none"
    config.model.parametrization = "mup"
    config.optimizer.name = "weight_space_muon"
    config.optimizer.learning_rate = 0.016
    config.optimizer.schedule = "linear"
    config.optimizer.final_fraction = 0.0
    config.optimizer.time_mlp_multiplier = 0.03  # faster, u(t) becomes one for all t
    config.training.num_steps = 2000
    config.training.batch_size = 16  # 2,048 tokens per step, 4.1M in all
    config.training.eval_every = 250
    config.training.checkpoint_every = 250
    return config
