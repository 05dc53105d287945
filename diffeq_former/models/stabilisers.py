"""Residual connections and norms: what stabilises a step besides the field's terms.

A term f moves the state x by a step of length h:

  pre   x <- r x + h f(norm(x))     as in GPT-2 and Llama, whose r and h are 1
  post  x <- norm(r x + h f(x))     as in the first Transformer (Vaswani et al. 2017)
  none  x <- r x + h f(x)

with r the residual connection: 1 on, 0 off. The norm before the head is in all.
"""

from collections.abc import Callable

import jax

from diffeq_former.config import ModelConfig
from diffeq_former.models.units import Norm, Units

OF_TERMS = ("norm_1", "norm_2")  # a block's norms: of attention, of feed-forward


def with_norms(c: ModelConfig, units: Units) -> Units:
    """The units without norms, where there are none."""
    keep = c.stabilisers.norm != "none"
    return {k: unit for k, unit in units.items() if keep or not isinstance(unit, Norm)}


def before_term(c: ModelConfig, norm: Callable, weights: dict, name: str, x_BLD):
    """What a term sees of the state; `norm(c, weights, x_BLD)` is the block's."""
    return norm(c, weights[name], x_BLD) if c.stabilisers.norm == "pre" else x_BLD


def after_term(c: ModelConfig, norm: Callable, weights_S: dict) -> dict:
    """The options of a solver's step that stabilise it.

    Args:
      c: the model.
      norm: `norm(c, weights, x)` of the block.
      weights_S: of the step, units with a leading axis of its one stage time.
    """
    options = {"keep": c.stabilisers.residual}
    if c.stabilisers.norm == "post":

        def after(index: int, x):
            weights = jax.tree.map(lambda w: w[0], weights_S[OF_TERMS[index]])
            return norm(c, weights, x)

        options["after"] = after
    return options
