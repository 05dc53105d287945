"""DiffEqFormer with Llama blocks (16 x 2048) on OpenWebText, as in the paper.

    python -m diffeq_former.main --config=configs/llama1b.py --workdir=runs/llama1b \
        --config.data.path=data/openwebtext_llama

The dataset is prepared with a tokenizer of 32,000 pieces and --seq_len=2048.
Baseline (a Llama of the same size): --config.model.weights=layer_table
--config.model.solver=lie_trotter. Block, initialisation and weight decay of the
authors' code: --config.model.chain_norms=True --config.model.initialization=authors
--config.optimizer.weight_decay=1e-5. Like that code, and like the Llama of
transformers, it has no dropout; configs/paper/llama1b.py has that of the paper's text.

Hardware: one GPU with 140 GB, or several over which the mesh axis fsdp shards the 80 GB
of parameters and moments (6.64e9 x 12 bytes: values, two moments); tools/plan.py
reports what fits. More than 256 devices also need --config.mesh.tensor or sequence, or
a larger batch, because each device takes at least one of the 256 sequences.
Time: 6 x 1.14e9 weights + 12 x 16 x 2048 x 2048 for attention = 7.6 GFLOP per token,
x 21e9 tokens = 1.6e20 FLOP, and a third more with rematerialisation: 19 hours at 40 %
of 989 TFLOP/s on eight H200.
Result: the authors' plots end at a validation perplexity of 9.69 (Llama: 10.18).
"""

from diffeq_former.config import default_config


def get_config():
    config = default_config()
    config.model.block = "llama"
    config.model.num_layers = 16
    config.model.d_model = 2048
    config.model.num_heads = 16
    config.model.d_ff = 8192
    config.model.vocab_size = 32000
    config.model.max_len = 2048
    config.model.time_embed_dim = 96
    config.model.num_frequencies = 256
    config.model.remat = "full"
    config.optimizer.learning_rate = 3e-4
    config.optimizer.b2 = 0.95
    config.training.num_steps = 40000  # x 256 x 2048 = 21e9 tokens
    config.training.batch_size = 256
    config.training.per_device_batch_size = 8
    config.training.eval_every = 500
    config.mesh.data = 1
    config.mesh.fsdp = -1
    return config
