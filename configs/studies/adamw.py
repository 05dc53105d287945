"""A hypernetwork and a plain transformer by AdamW, each at its best learning rate.

    python tools/experiment.py comparison --config=configs/small.py \
        --config.data.path=data/books --study=configs/studies/adamw.py \
        --config.model.d_model=64 --config.model.num_heads=2 \
        --held_out=data/held-out --num_seeds=3 --num_parallel=2 --output=runs/adamw

Trials are as long as the runs that are compared. By AdamW, a smooth W(t) and slow MLPs
of u(t) are worse: the hypernetwork has neither.
"""

LEARNING_RATES = {"optimizer.learning_rate": [0.016, 0.032, 0.064, 0.128]}
ADAMW = "optimizer.name=adamw"


def get_study():
    models = {
        "plain": ["model.weights=layer_table", ADAMW],
        "hypernetwork": [
            "model.time_scale=1000.0",
            "optimizer.time_mlp_multiplier=1.0",
            ADAMW,
        ],
    }
    return {
        "baseline": "plain",
        "models": models,
        "search": {name: LEARNING_RATES for name in models},
        "final_settings": [],
    }
