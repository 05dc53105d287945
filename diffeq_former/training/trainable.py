"""Which parameters training changes: all, or with adapters only those.

What is frozen has neither gradients nor moments. It stays in the state, so that a run's
folder holds all of its model.
"""

from flax import traverse_util

from diffeq_former.config import Config
from diffeq_former.models.lora import NAMES


def split(config: Config, params: dict) -> tuple[dict, dict]:
    """What is trained, and what is frozen, of a tree like the parameters."""
    if not config.model.lora_rank:
        return params, {}
    parts = {True: {}, False: {}}
    for path, x in traverse_util.flatten_dict(params).items():
        parts[_is_trainable(config, path)][path] = x
    return tuple(traverse_util.unflatten_dict(parts[kind]) for kind in (True, False))


def join(trainable: dict, frozen: dict) -> dict:
    """What `split` took apart."""
    flat = (traverse_util.flatten_dict(part) for part in (frozen, trainable))
    return traverse_util.unflatten_dict(
        {k: x for part in flat for k, x in part.items()}
    )


def _is_trainable(config: Config, path: tuple[str, ...]) -> bool:
    """Embeddings, last norm and head stand at the ends of depth, all else within."""
    return path[-1] in NAMES or (
        config.finetune.train_embeddings and path[0] != "weights"
    )
