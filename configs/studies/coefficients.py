"""The coefficients u(t) by MLPs, and as the solution of an ODE.

    python tools/experiment.py comparison --config=configs/small.py \
        --config.data.path=data/books --study=configs/studies/coefficients.py \
        --config.model.d_model=64 --config.model.num_heads=2 \
        --config.training.num_steps=700 --config.training.eval_every=350 \
        --held_out=data/held-out --num_seeds=3 --num_parallel=2 \
        --output=runs/coefficients

Both have the recipe of configs/small.py, in which u(t) learns slowly.
"""


def get_study():
    models = {x: [f"model.time_mlp={x}"] for x in ("per_weight", "ode")}
    return {
        "baseline": "per_weight",
        "models": models,
        "final_settings": [],
    }
