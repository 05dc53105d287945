"""Rematerialisation policies: which values the backward pass finds saved."""

from collections.abc import Callable

import jax
from jax.ad_checkpoint import checkpoint_name

from diffeq_former.config.model_schema import SAVE_WEIGHTS

ATTENTION_OUTPUT = "attention_output"
FEED_FORWARD_OUTPUT = "feed_forward_output"
GENERATED_WEIGHTS = "generated_weights"

_saves = jax.checkpoint_policies.save_only_these_names

# "none" does not rematerialise.
POLICIES = {
    "none": None,
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        _saves(ATTENTION_OUTPUT),
    ),
    "save_attention": _saves(ATTENTION_OUTPUT),
    "save_terms": _saves(ATTENTION_OUTPUT, FEED_FORWARD_OUTPUT),
    "save_weights": _saves(GENERATED_WEIGHTS),
    "save_attention_and_weights": _saves(ATTENTION_OUTPUT, GENERATED_WEIGHTS),
}
# Equivalent policies for a model whose weights are not generated within the step.
WITHOUT_WEIGHTS = dict(zip(SAVE_WEIGHTS, ("full", "save_attention"), strict=True))


def recomputed(function: Callable, policy: str = "full") -> Callable:
    """Let the backward pass compute the inside of a function again from its arguments.

    For elementwise functions and reshapes: that costs less than to write what they save
    to memory.

    Args:
      function: The function.
      policy: The key of `POLICIES` for the values in it that are saved nevertheless.
    """
    return jax.checkpoint(function, policy=POLICIES[policy], prevent_cse=False)


def named(name: str, tree):
    """Give every array of a tree a name that policies refer to."""
    return jax.tree.map(lambda x: checkpoint_name(x, name), tree)
