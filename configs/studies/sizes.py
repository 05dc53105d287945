"""A hypernetwork and plain transformers at one size, by Muon.

    python tools/experiment.py comparison --config=configs/small.py \
        --config.data.path=data/books --study=configs/studies/sizes.py \
        --config.model.d_model=64 --config.model.num_heads=2 \
        --held_out=data/held-out --num_seeds=3 --num_parallel=2 --output=runs/width-64
    python tools/plot.py trend --comparison=runs/width-64 --comparison=runs/width-128 \
        --comparison=runs/width-256 --output=docs/trend.png

The learning rate is the best of each in learning_rates.py, which searches at width 64;
muP keeps it right for all sizes.
"""

MUON = ["optimizer.name=muon", "optimizer.learning_rate=0.032"]
WEIGHT_SPACE = [
    "optimizer.name=weight_space_muon",
    "optimizer.learning_rate=0.032",
    "optimizer.time_mlp_multiplier=0.03",
    "model.time_scale=30.0",
]
PLAIN, HYPERNETWORK = "model.weights=layer_table", "model.weights=hypernetwork"
EULER, LIE_TROTTER = "model.solver=euler", "model.solver=lie_trotter"


def get_study():
    models = {
        "plain muon": [PLAIN, LIE_TROTTER, *MUON],
        "parallel muon": [PLAIN, EULER, *MUON],
        "hypernetwork weight_space_muon": [HYPERNETWORK, LIE_TROTTER, *WEIGHT_SPACE],
    }
    return {
        "baseline": "plain muon",
        "models": models,
        "final_settings": [],
    }
