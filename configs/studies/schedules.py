"""The best learning rates of a hypernetwork and a plain transformer at full length.

    python tools/experiment.py comparison --config=configs/small.py \
        --config.data.path=data/books --study=configs/studies/schedules.py \
        --config.model.d_model=64 --config.model.num_heads=2 \
        --held_out=data/held-out --num_seeds=3 --num_parallel=2 --output=runs/schedules

Unlike in learning_rates.py, trials are as long as the runs that are compared. The rate
falls to 0 linearly, which is better for both than cosine to a tenth of the peak.
"""

LEARNING_RATES = {"optimizer.learning_rate": [0.008, 0.016, 0.032, 0.064]}
TO_ZERO = ["optimizer.schedule=linear", "optimizer.final_fraction=0.0"]


def get_study():
    models = {
        "plain": ["model.weights=layer_table", "optimizer.name=muon", *TO_ZERO],
        "hypernetwork": TO_ZERO,
    }
    return {
        "baseline": "plain",
        "models": models,
        "search": {name: LEARNING_RATES for name in models},
        "final_settings": [],
    }
