"""The learning rate of the MLPs that compute u(t), relative to that of the matrices.

    python tools/experiment.py comparison --config=configs/small.py \
        --config.data.path=data/books --study=configs/studies/speed_of_u.py \
        --num_parallel=2 --output=runs/speed_of_u

At half the width of --config.
"""

SOLVERS = ("euler", "lie_trotter")
MULTIPLIERS = {"optimizer.time_mlp_multiplier": [0.03, 0.1, 0.3, 1.0]}


def get_study():
    half = ["model.d_model=64", "model.num_heads=2"]
    return {
        "baseline": "euler",
        "models": {
            solver: [f"model.solver={solver}", "model.time_scale=1000.0"]
            for solver in SOLVERS
        },
        "search": {solver: MULTIPLIERS for solver in SOLVERS},
        "search_settings": ["training.num_steps=700", *half],
    }
