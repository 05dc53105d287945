"""Which group each parameter belongs to: the one table over parameter paths."""

import re

import jax

# The first row whose pattern matches the whole path decides. Columns: pattern, group,
# and whether it holds matrices, or one-dimensional things (norms, biases, their banks).
_TABLE = (
    (r"weights/time_mlp/kernel_[12]", "time_mlp", True),
    (r"weights/time_mlp/bias_[12]", "time_mlp", False),
    (r"weights/[^/]+/bank", "bank", True),
    (r"weights/[^/]+/bias_bank", "bank", False),
    (r"weights/[^/]+/(base|kernel)", "base", True),
    (r"weights/[^/]+/lora_[ab]", "lora", True),
    (r"weights/[^/]+/bias", "base", False),
    (r"weights/[^/]+/(scale|shift)(_bank)?", "norm", False),
    (r"final_norm/(scale|shift)", "norm", False),
    (r"embedding/(token|position)", "embedding", True),
    (r"head/kernel", "head", True),
)

GROUPS = tuple(dict.fromkeys(group for _, group, _ in _TABLE))


def group_of(params) -> dict:
    """The tree of `params` with the name of its group at every leaf."""
    return _look_up(params, lambda group, is_matrix: group)


def decays(params, mask: str) -> dict:
    """The tree of `params` with True where weight decay applies.

    Args:
      params: a tree of arrays or shapes.
      mask: `matrices`; `embeddings`, as the paper's authors released it: token and
        position embeddings only; or `all`.
    """
    rules = {
        "matrices": lambda group, is_matrix: is_matrix,
        "embeddings": lambda group, is_matrix: group == "embedding",
        "all": lambda group, is_matrix: True,
    }
    return _look_up(params, rules[mask])


def _look_up(params, choose) -> dict:
    def of_leaf(path, _):
        return choose(*_row(jax.tree_util.keystr(path, simple=True, separator="/")))

    return jax.tree_util.tree_map_with_path(of_leaf, params)


def _row(path: str) -> tuple[str, bool]:
    for pattern, group, is_matrix in _TABLE:
        if re.fullmatch(pattern, path):
            return group, is_matrix
    raise ValueError(
        f"parameter {path}: no pattern in training/parameter_groups.py covers it; "
        "add one, with its group"
    )
