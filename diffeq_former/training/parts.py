"""The parameters of a model, apart by how a training step treats them.

All parameters are trainable, unless the model has adapters (LoRA): then only these are
and, if configured, the embeddings, the final norm and the head. Frozen parameters have
neither gradients nor moments. They stay in the training state, so that the checkpoints
of a run contain the whole model.

The banks of a hypernetwork are most of its parameters. Their gradients are kept as
factors (bank_gradient.py), and each bank is updated on its own (update.py).
"""

import flax.struct
import jax
from flax import traverse_util

from diffeq_former.config import Config
from diffeq_former.models.lora import NAMES


class Parts(flax.struct.PyTreeNode):
    """The parameters, or a value for each of them, such as its gradient."""

    rest: dict  # trainable: a tree like the parameters without banks and frozen ones
    banks: dict[str, jax.Array]  # trainable: weights/NAME/bank by NAME
    frozen: dict  # a tree like the parameters without trainable ones

    def merge(self) -> dict:
        """Return one tree like the parameters."""
        banks = (bank_tree(name, bank) for name, bank in self.banks.items())
        return merge(self.rest, *banks, self.frozen)


def partition(config: Config, params: dict) -> Parts:
    """Partition a tree like the parameters, or like a part of them."""
    rest, banks, frozen = {}, {}, {}
    for path, x in traverse_util.flatten_dict(params).items():
        if not _is_trainable(config, path):
            frozen[path] = x
        elif path[0] == "weights" and path[-1] == "bank":
            banks[path[1]] = x
        else:
            rest[path] = x
    unflatten = traverse_util.unflatten_dict
    return Parts(rest=unflatten(rest), banks=banks, frozen=unflatten(frozen))


def _is_trainable(config: Config, path: tuple[str, ...]) -> bool:
    if not config.model.lora_rank or path[-1] in NAMES:
        return True
    return config.finetune.train_embeddings and path[0] != "weights"


def merge(*trees: dict) -> dict:
    """Merge nested dictionaries without a leaf in common."""
    flat = (traverse_util.flatten_dict(tree) for tree in trees)
    return traverse_util.unflatten_dict(
        {path: x for tree in flat for path, x in tree.items()}
    )


def bank_tree(name: str, bank) -> dict:
    """Return a tree like the parameters that contains only this bank."""
    return {"weights": {name: {"bank": bank}}}


def get_bank(name: str, tree: dict):
    """Return the bank in a tree made by `bank_tree`."""
    return tree["weights"][name]["bank"]
