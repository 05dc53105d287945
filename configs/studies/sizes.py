"""Hypernetwork and plain transformer at one size, by each optimizer.

    python tools/experiment.py comparison --config=configs/small.py \
        --config.data.path=data/books --study=configs/studies/sizes.py \
        --config.model.d_model=64 --config.model.num_heads=2 \
        --held_out=data/held-out --num_seeds=3 --num_parallel=2 --output=runs/width-64
    python tools/plot.py trend --comparison=runs/width-64 --comparison=runs/width-128 \
        --comparison=runs/width-256 --output=docs/trend.png

The learning rates are the best of learning_rates.py, which searches them at width 64;
muP keeps them right for all sizes.
"""

HYPERNETWORK = ["model.weights=hypernetwork", "model.solver=euler"]
PLAIN = ["model.weights=layer_table", "model.solver=lie_trotter"]
PARALLEL = ["model.weights=layer_table", "model.solver=euler"]
MUON = ["optimizer.name=muon", "optimizer.learning_rate=0.032"]
WEIGHT_SPACE = ["optimizer.name=weight_space_muon", "optimizer.learning_rate=0.032"]
ADAMW = ["optimizer.name=adamw", "optimizer.learning_rate=0.064"]


def get_study():
    models = {
        "plain muon": [*PLAIN, *MUON],
        "parallel muon": [*PARALLEL, *MUON],
        "hypernetwork weight_space_muon": [*HYPERNETWORK, *WEIGHT_SPACE],
        "hypernetwork muon": [*HYPERNETWORK, *MUON],
        "plain adamw": [*PLAIN, *ADAMW],
        "hypernetwork adamw": [*HYPERNETWORK, *ADAMW],
    }
    return {
        "baseline": "plain muon",
        "models": models,
        "search": {name: {} for name in models},
        "search_settings": [],
        "final_settings": [],
    }
