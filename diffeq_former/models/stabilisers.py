"""Residual connections and norms around the terms of a step.

A term f moves the state x by a step of length h:

  pre   x <- r x + h f(norm(x))     as in GPT-2 and Llama, whose r and h are 1
  post  x <- norm(r x + h f(x))     as in the first Transformer (Vaswani et al. 2017)
  none  x <- r x + h f(x)

with the residual coefficient r: 1 is the usual residual connection, 0 is none. The
final norm before the head is always present.
"""

from collections.abc import Callable, Sequence

import jax

from diffeq_former.config import ModelConfig
from diffeq_former.models.block import Block
from diffeq_former.models.weight_specs import WeightSpecs
from diffeq_former.ode.solvers import Term, get_solver

# Groups of terms that are added to the state together, for the solvers that apply each
# term once per step.
_TERMS_AT_ONCE = {"euler": ((0, 1),), "lie_trotter": ((0,), (1,))}
TERM_NORMS = ("norm_1", "norm_2")  # norms of the attention and feed-forward terms


def drop_unused_norms(c: ModelConfig, specs: WeightSpecs) -> WeightSpecs:
    """Return the specs without the norms of the terms if the model has none."""
    if c.stabilisers.norm != "none":
        return specs
    return {name: spec for name, spec in specs.items() if name not in TERM_NORMS}


def term_input(c: ModelConfig, norm: Callable, weights: dict, name: str, x_BLD):
    """Return the input of a term, normalised if the model has pre-norms.

    Args:
      c: The model's configuration.
      norm: The block's `norm(c, weights, x_BLD)`.
      weights: The block's weights at one time, by name.
      name: The name of the norm.
      x_BLD: The state.
    """
    return norm(c, weights[name], x_BLD) if c.stabilisers.norm == "pre" else x_BLD


def stabilised_step(
    c: ModelConfig, block: Block, terms: Sequence[Term], weights_S: dict, x_BLD, h
):
    """Take one step of the model's solver with its residual connection and norms.

    With a residual coefficient other than 1, or with post-norms, the step no longer
    discretises dx/dt = f(x). Such steps are defined only for solvers that apply each
    term once per step.

    Args:
      c: The model's configuration.
      block: The model's block.
      terms: Attention and feed-forward, functions of a stage and a state.
      weights_S: The step's weights, by name, with a leading axis of stages.
      x_BLD: The state before the step, of any shape that the terms accept.
      h: The length of the step.
    """
    residual, is_post = c.stabilisers.residual, c.stabilisers.norm == "post"
    if residual == 1 and not is_post:
        return get_solver(c.solver).step(terms, x_BLD, h)
    for indices in _TERMS_AT_ONCE[c.solver]:
        dx_BLD = sum(terms[i](0, x_BLD) for i in indices)
        x_BLD = residual * x_BLD + h * dx_BLD
        if is_post:
            weights = jax.tree.map(lambda w: w[0], weights_S[TERM_NORMS[indices[0]]])
            x_BLD = block.norm(c, weights, x_BLD)
    return x_BLD
