"""Ablation of a hypernetwork: widths E, and each of its parts left out.

    python tools/experiment.py comparison --config=configs/small.py \
        --config.data.path=data/books --study=configs/studies/parts.py \
        --held_out=data/held-out --num_seeds=3 --num_parallel=2 --output=runs/parts

With fewer matrices F_e and B than layers, W(t) at the layers is not free; with as many
or more, a hypernetwork is a reparametrisation of a plain transformer's weights. With
E = 7, it stores as many as the plain transformer of 8 layers; the wide one stores as
many parameters as the hypernetwork with E = 48. Models have half the width of --config
and its learning rate, which muP keeps right for all of them.
"""

WIDTHS = (48, 2, 4, 7, 16, 96)
PLAIN = ["model.weights=layer_table", "optimizer.name=muon"]


def get_study():
    models = {f"E {E}": [f"model.time_embed_dim={E}"] for E in WIDTHS}
    models |= {
        "plain": PLAIN,
        "no base": ["model.base=False"],
        "frozen bank": ["optimizer.bank_multiplier=0.0"],
        "frozen u": ["optimizer.time_mlp_multiplier=0.0"],
        "table of u": ["model.time_mlp=table", "model.time_segments=8"],
        "fast u": ["model.time_scale=1000.0"],
        "plain, coupled": [*PLAIN, "optimizer.layer_coupling=1.0"],
        "plain, wide": [*PLAIN, "model.d_model=148", "model.num_heads=4"],
    }
    half = ["model.d_model=64", "model.num_heads=2", "model.solver=lie_trotter"]
    return {
        "baseline": "E 48",
        "models": {name: [*half, *changes] for name, changes in models.items()},
        "search": {name: {} for name in models},
        "search_settings": [],
        "final_settings": ["training.num_steps=700"],
    }
