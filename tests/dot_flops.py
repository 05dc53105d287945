"""Counts the flops of the matrix products of a function, from its trace."""

import math

import jax
from jax.extend.core import jaxprs_in_params


def dot_flops(function, *args) -> int:
    return _of_jaxpr(jax.make_jaxpr(function)(*args).jaxpr)


def _of_jaxpr(jaxpr) -> int:
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            inner = math.prod(eqn.invars[0].aval.shape[i] for i in contracted)
            total += 2 * inner * math.prod(eqn.outvars[0].aval.shape)
        repeats = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        total += repeats * sum(map(_of_jaxpr, jaxprs_in_params(eqn.params)))
    return total
