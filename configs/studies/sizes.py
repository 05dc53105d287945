"""Hypernetwork and plain transformer at one of several sizes, by AdamW and by Muon.

    python tools/experiment.py comparison --config=configs/small.py \
        --config.data.path=data/books --study=configs/studies/sizes.py \
        --config.model.d_model=64 --config.model.num_heads=2 \
        --held_out=data/held-out --num_seeds=3 --num_parallel=2 --output=runs/width-64
    python tools/plot.py trend --comparison=runs/width-64 --comparison=runs/width-128 \
        --comparison=runs/width-256 --output=docs/trend.png

All sizes have the learning rate of --config.
"""

HYPERNETWORK = ["model.weights=hypernetwork", "model.solver=euler"]
PLAIN = ["model.weights=layer_table", "model.solver=lie_trotter"]


def get_study():
    models = {
        f"{name} {optimizer}": [*settings, f"optimizer.name={optimizer}"]
        for optimizer in ("muon", "adamw")
        for name, settings in (("hypernetwork", HYPERNETWORK), ("plain", PLAIN))
    }
    return {
        "baseline": "plain muon",
        "models": models,
        "search": {name: {} for name in models},
        "search_settings": [],
        "final_settings": [],
    }
