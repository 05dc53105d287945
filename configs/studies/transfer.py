"""Whether the best learning rate of a small hypernetwork is that of larger ones.

    python tools/experiment.py comparison --config=configs/small.py \
        --config.data.path=data/books --study=configs/studies/transfer.py \
        --output=runs/transfer

Each size differs from the first in one of: width D, steps L, E. Without muP:
--config.model.parametrization=standard.
"""

SIZES = {
    "D 64 L 8 E 16": [],
    "D 128": ["model.d_model=128", "model.num_heads=4"],
    "L 4": ["model.num_layers=4"],
    "L 16": ["model.num_layers=16"],
    "E 48": ["model.time_embed_dim=48"],
    "E 96": ["model.time_embed_dim=96"],
    "D 256": ["model.d_model=256", "model.num_heads=8"],
}
FIRST = ["model.d_model=64", "model.num_heads=2", "model.time_embed_dim=16"]
LEARNING_RATES = [0.008, 0.016, 0.032, 0.064, 0.128]


def get_study():
    return {
        "baseline": next(iter(SIZES)),
        "models": {name: [*FIRST, *changes] for name, changes in SIZES.items()},
        "search": {name: {"optimizer.learning_rate": LEARNING_RATES} for name in SIZES},
        "search_settings": ["training.num_steps=200", "training.batch_size=8"],
    }
