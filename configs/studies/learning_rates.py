"""The best learning rates of a hypernetwork, a plain transformer and shared weights.

    python tools/experiment.py comparison --config=configs/small.py \
        --config.data.path=data/books --study=configs/studies/learning_rates.py \
        --num_parallel=2 --output=runs/learning_rates

At half the width of --config, in a third of its steps: which optimizer, and which order
of the terms. sizes.py and adamw.py search at full length.
"""

LEARNING_RATES = {"optimizer.learning_rate": [0.016, 0.032, 0.064]}
HYPERNETWORK = [
    "model.weights=hypernetwork",
    "model.solver=euler",
    "model.time_scale=1000.0",
    "optimizer.time_mlp_multiplier=1.0",
]
PLAIN = ["model.weights=layer_table", "model.solver=lie_trotter"]
PARALLEL = ["model.weights=layer_table", "model.solver=euler"]
SHARED = ["model.weights=shared", "model.solver=lie_trotter"]
ADAMW, MUON, WEIGHT_SPACE = (
    f"optimizer.name={name}" for name in ("adamw", "muon", "weight_space_muon")
)


def get_study():
    models = {
        "plain muon": [*PLAIN, MUON],
        "parallel muon": [*PARALLEL, MUON],
        "hypernetwork muon": [*HYPERNETWORK, MUON],
        "plain adamw": [*PLAIN, ADAMW],
        "hypernetwork adamw": [*HYPERNETWORK, ADAMW],
        "hypernetwork weight_space_muon": [*HYPERNETWORK, WEIGHT_SPACE],
        "shared muon": [*SHARED, MUON],
    }
    half = ["model.d_model=64", "model.num_heads=2"]
    return {
        "baseline": "plain muon",
        "models": models,
        "search": {name: LEARNING_RATES for name in models},
        "search_settings": ["training.num_steps=700", *half],
    }
