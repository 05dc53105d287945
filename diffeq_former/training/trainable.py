"""Partition parameters into trainable and frozen ones.

All parameters are trainable, unless the model has adapters (LoRA). Frozen parameters
have neither gradients nor moments. They stay in the training state, so that the
checkpoints of a run contain the whole model.
"""

from flax import traverse_util

from diffeq_former.config import Config
from diffeq_former.models.lora import NAMES


def split(config: Config, params: dict) -> tuple[dict, dict]:
    """Split a tree like the parameters into its trainable and its frozen part."""
    if not config.model.lora_rank:
        return params, {}
    parts = {True: {}, False: {}}
    for path, x in traverse_util.flatten_dict(params).items():
        parts[_is_trainable(config, path)][path] = x
    return tuple(traverse_util.unflatten_dict(parts[kind]) for kind in (True, False))


def join(trainable: dict, frozen: dict) -> dict:
    """Merge the two trees that `split` returned."""
    flat = (traverse_util.flatten_dict(part) for part in (frozen, trainable))
    return traverse_util.unflatten_dict(
        {k: x for part in flat for k, x in part.items()}
    )


def _is_trainable(config: Config, path: tuple[str, ...]) -> bool:
    """Return whether the parameter at this path of a model with adapters is trained.

    These are the adapters and, if configured, everything outside of `weights`: the
    embeddings, the final norm and the head.
    """
    return path[-1] in NAMES or (
        config.finetune.train_embeddings and path[0] != "weights"
    )
