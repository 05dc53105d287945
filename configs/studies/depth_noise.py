"""Noise over depth where data are few: one novel, read several times.

    python tools/prepare_data.py --source='text:pride-and-prejudice.txt' \
        --validation_source='text:emma.txt' --seq_len=128 \
        --tokenizer=sentencepiece:data/books.model --output=data/one-novel
    python tools/experiment.py comparison --config=configs/small.py \
        --config.data.path=data/one-novel --study=configs/studies/depth_noise.py \
        --config.model.d_model=64 --config.model.num_heads=2 \
        --config.training.num_steps=700 --config.training.eval_every=100 \
        --held_out=data/held-out --num_seeds=3 --num_parallel=2 \
        --output=runs/depth_noise

The 700 steps are about eight epochs.
"""


def get_study():
    models = {"none": []}
    models |= {f"noise {x}": [f"model.depth_noise={x}"] for x in (0.1, 0.3)}
    models |= {"dropout 0.1": ["model.dropout=0.1"]}
    return {
        "baseline": "none",
        "models": models,
        "final_settings": [],
    }
