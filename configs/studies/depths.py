"""One model for all numbers of steps, and one trained for each: hypernetwork and plain.

    python tools/experiment.py comparison --config=configs/small.py \
        --config.data.path=data/books --study=configs/studies/depths.py \
        --held_out=data/held-out --num_seeds=3 --num_parallel=2 --output=runs/depths
    python tools/evaluate.py --num_steps=4,5,6,7,8,10,12,14,16,32 \
        --workdir='runs/depths/finals/sampled,seed=0'

The second command evaluates one of the runs in other numbers of steps.
"""

SAMPLED = "training.depth_steps=4,5,6,7,8,8,8,8,8,8,12,16"
PLAIN = ["model.weights=layer_table", "optimizer.name=muon"]


def get_study():
    models = {"sampled": [SAMPLED], "plain sampled": [*PLAIN, SAMPLED]}
    models |= {f"{n} steps": [f"model.num_layers={n}"] for n in (8, 4, 6)}
    models |= {"plain 8 steps": PLAIN}
    return {
        "baseline": "8 steps",
        "models": models,
        "final_settings": [],
    }
