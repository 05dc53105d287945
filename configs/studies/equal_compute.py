"""A hypernetwork, a plain transformer and shared weights at equal compute.

    python tools/experiment.py comparison --config=configs/small.py \
        --config.data.path=data/books --study=configs/studies/equal_compute.py \
        --held_out=data/held-out --num_seeds=3 --num_parallel=2 \
        --output=runs/equal_compute

The models apply the same number of weights to each token, and each has the solver that
suits it. Learning rates are searched at half the width; muP transfers them.
"""

LEARNING_RATES = {"optimizer.learning_rate": [0.016, 0.032, 0.064]}
HYPERNETWORK = ["model.weights=hypernetwork", "model.solver=euler"]
PLAIN = ["model.weights=layer_table", "model.solver=lie_trotter"]
SHARED = ["model.weights=shared", "model.solver=lie_trotter"]
ADAMW, MUON, WEIGHT_SPACE = (
    f"optimizer.name={name}" for name in ("adamw", "muon", "weight_space_muon")
)


def get_study():
    models = {
        "hypernetwork muon": [*HYPERNETWORK, MUON],
        "plain muon": [*PLAIN, MUON],
        "hypernetwork adamw": [*HYPERNETWORK, ADAMW],
        "plain adamw": [*PLAIN, ADAMW],
        "hypernetwork weight_space_muon": [*HYPERNETWORK, WEIGHT_SPACE],
        "shared muon": [*SHARED, MUON],
    }
    half = ["model.d_model=64", "model.num_heads=2"]
    return {
        "baseline": "plain muon",
        "models": models,
        "search": {name: LEARNING_RATES for name in models},
        "search_settings": ["training.num_steps=700", *half],
        "final_settings": ["training.num_steps=2000"],
    }
