"""What the backward pass finds saved, and what it computes again, by name."""

import jax
from jax.ad_checkpoint import checkpoint_name

from diffeq_former.config.schema import SAVE_WEIGHTS

ATTENTION_OUTPUT = "attention_output"
FEED_FORWARD_OUTPUT = "feed_forward_output"
GENERATED_WEIGHTS = "generated_weights"

_saves = jax.checkpoint_policies.save_only_these_names

# "none" saves everything: no rematerialisation at all.
POLICIES = {
    "none": None,
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "save_attention": _saves(ATTENTION_OUTPUT),
    "save_terms": _saves(ATTENTION_OUTPUT, FEED_FORWARD_OUTPUT),
    "save_weights": _saves(GENERATED_WEIGHTS),
    "save_attention_and_weights": _saves(ATTENTION_OUTPUT, GENERATED_WEIGHTS),
}
# Those that save the same of a step that is given its weights.
WITHOUT_WEIGHTS = dict(zip(SAVE_WEIGHTS, ("full", "save_attention"), strict=True))


def named(name: str, tree):
    """Marks every array of a tree for the policies."""
    return jax.tree.map(lambda x: checkpoint_name(x, name), tree)
