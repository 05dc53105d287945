"""A hypernetwork, a plain transformer and shared weights at equal compute.

    python tools/experiment.py comparison --config=configs/small.py \
        --config.data.path=data/books --study=configs/studies/equal_compute.py \
        --held_out=data/held-out --num_seeds=3 --num_parallel=2 \
        --output=runs/equal_compute

The models apply the same number of weights to each token, and each has the solver that
suits it. Each is trained by AdamW and by Muon, the hypernetwork also by Muon in weight
space, and the plain transformer also with the preconditioner that a hypernetwork
implies. The learning rate of a hypernetwork's banks is a multiple of the searched one:
optimizer.bank_multiplier of --config.
"""

LEARNING_RATES = {
    "coupled adamw": [5e-4, 1e-3, 2e-3],
    "adamw": [1e-3, 2e-3, 4e-3],
    "muon": [8e-3, 16e-3, 32e-3],
}
MODELS = {
    "hypernetwork": ["model.weights=hypernetwork", "model.solver=euler"],
    "layer_table": ["model.weights=layer_table", "model.solver=lie_trotter"],
    "shared": ["model.weights=shared", "model.solver=lie_trotter"],
}
COUPLED = ["optimizer.layer_coupling=1.0"]
WEIGHT_SPACE = ["optimizer.name=weight_space_muon"]


def get_study():
    models = {}
    for optimizer in ("adamw", "muon"):
        chosen = [f"optimizer.name={optimizer}"]
        models |= {f"{name} {optimizer}": x + chosen for name, x in MODELS.items()}
        coupled = MODELS["layer_table"] + chosen + COUPLED
        models[f"layer_table coupled {optimizer}"] = coupled
    models["hypernetwork weight_space_muon"] = MODELS["hypernetwork"] + WEIGHT_SPACE
    return {
        "baseline": "layer_table muon",
        "models": models,
        "search": {name: {"optimizer.learning_rate": _rates(name)} for name in models},
        "search_settings": ["training.num_steps=700"],
        "final_settings": ["training.num_steps=2000"],
    }


def _rates(model: str) -> list[float]:
    return next(rates for end, rates in LEARNING_RATES.items() if model.endswith(end))
