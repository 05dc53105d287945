"""A hypernetwork and a plain transformer at one size, each at its best learning rate.

    python tools/experiment.py comparison --config=configs/small.py \
        --config.data.path=data/books --study=configs/studies/sizes.py \
        --config.model.d_model=64 --config.model.num_heads=2 \
        --held_out=data/held-out --num_seeds=3 --num_parallel=2 --output=runs/width-64
    python tools/plot.py trend --comparison=runs/width-64 --comparison=runs/width-128 \
        --comparison=runs/width-256 --output=docs/trend.png

Trials are as long as the runs that are compared.
"""

LEARNING_RATES = {"optimizer.learning_rate": [0.008, 0.016, 0.032, 0.064]}


def get_study():
    models = {
        "plain": ["model.weights=layer_table", "optimizer.name=muon"],
        "hypernetwork": [],
    }
    return {
        "baseline": "plain",
        "models": models,
        "search": {name: LEARNING_RATES for name in models},
        "final_settings": [],
    }
