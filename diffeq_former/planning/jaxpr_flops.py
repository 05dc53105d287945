"""FLOPs of a function's matrix products, counted in its jaxpr."""

import math
from collections.abc import Iterator

import jax
from jax.extend.core import jaxprs_in_params


def dot_flops(function, *args) -> Iterator[int]:
    """Yield the FLOPs of each product, those in a scan multiplied by its length."""
    return _of_jaxpr(jax.make_jaxpr(function)(*args).jaxpr, 1)


def _of_jaxpr(jaxpr, repeats: int) -> Iterator[int]:
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            inner = math.prod(eqn.invars[0].aval.shape[i] for i in contracted)
            yield repeats * 2 * inner * math.prod(eqn.outvars[0].aval.shape)
        times = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        for inside in jaxprs_in_params(eqn.params):
            yield from _of_jaxpr(inside, repeats * times)
