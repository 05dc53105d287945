"""A model for speed measurements on a CPU; not meant to be trained.

    python tools/benchmark.py train --config=configs/benchmark.py \
        --variant="plain: model.weights=layer_table model.solver=lie_trotter"

Hardware: 2 CPU cores, 1.5 GB.
Time: about 2 s per step.
Result: docs/performance.md.
"""

from diffeq_former.config import default_config


def get_config():
    config = default_config()
    config.model.num_layers = 8
    config.model.d_model = 256
    config.model.num_heads = 4
    config.model.vocab_size = 2048
    config.model.max_len = 256
    config.model.time_embed_dim = 96
    config.model.dtype = "float32"
    config.model.remat = "dots"
    config.training.batch_size = 16
    return config
