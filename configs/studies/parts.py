"""Ablation of a hypernetwork: widths E, and each of its parts left out.

    python tools/experiment.py comparison --config=configs/small.py \
        --config.data.path=data/books --study=configs/studies/parts.py \
        --held_out=data/held-out --num_seeds=3 --num_parallel=2 --output=runs/parts

With fewer matrices F_e and B than layers, W(t) at the layers is not free; with as many
or more, a hypernetwork is a reparametrisation of a plain transformer's weights. With
E = 7, it stores as many as the plain transformer of 8 layers. Models have half the
width of --config and its learning rate, which muP keeps right for all of them.
"""

WIDTHS = (48, 2, 4, 7, 16, 96)


def get_study():
    models = {f"E {E}": [f"model.time_embed_dim={E}"] for E in WIDTHS}
    models |= {
        "plain": ["model.weights=layer_table", "optimizer.name=muon"],
        "no base": ["model.base=False"],
        "frozen bank": ["optimizer.bank_multiplier=0.0"],
        "table of u": ["model.time_mlp=table"],
    }
    half = ["model.d_model=64", "model.num_heads=2"]
    return {
        "baseline": "E 48",
        "models": {name: [*half, *changes] for name, changes in models.items()},
        "final_settings": ["training.num_steps=700"],
    }
