"""Orders on the model's own field, where that is smooth, are the solvers'."""

import dataclasses
import functools

import pytest
from cases import TINY, params_of, tokens_of

from diffeq_former.analysis.convergence import (
    end_of_depth,
    flow,
    measured_order,
    relative_error,
)
from diffeq_former.ode.solvers import SOLVERS, Splitting

# W(t) is smooth, or jumps where steps end. Each with numbers of steps, by order; those
# of jumps cut the first of three segments, too, which is cut a quarter as often.
FIELDS = {
    "smooth": (
        dataclasses.replace(TINY, time_scale=2.0, solver="heun"),
        {1: (64, 128), 2: (32, 64), 4: (6, 12)},
    ),
    "jumps": (
        TINY,
        {1: (192, 384), 2: (96, 192), 4: (24, 48)},
    ),
}


@functools.cache
def flow_of(field):
    config, counts = FIELDS[field]
    params, tokens_BL = params_of(config, stddev=0.1), tokens_of(config)
    return params, tokens_BL, flow(config, params, tokens_BL, max(counts[2]))


@pytest.mark.parametrize(
    "field, solver",
    [
        ("smooth", "euler"),
        ("jumps", "lie_trotter"),
        ("smooth", "strang"),
        ("smooth", "midpoint"),
        ("jumps", "heun"),
        ("smooth", "rk4"),
        pytest.param("jumps", "rk4", marks=pytest.mark.slow),
    ],
)
def test_order_of_the_models_field(field, solver):
    config, counts = FIELDS[field]
    params, tokens_BL, exact = flow_of(field)
    method = SOLVERS[solver]
    # Attention and feed-forward bend along themselves: see Splitting.
    order = 1 if isinstance(method, Splitting) else method.order
    errors = [
        relative_error(end_of_depth(config, params, tokens_BL, solver, n), exact)
        for n in counts[order]
    ]
    assert measured_order(counts[order], errors) == pytest.approx(order, abs=0.15)


def test_only_errors_that_tell_are_measured():
    counts = (1, 2, 4, 8, 16)
    assert measured_order(counts, (0.9, 0.08, 0.02, 0.005, 1e-7)) == pytest.approx(2)
    assert measured_order(counts, (0.9, 0.8, 0.02, 1e-6, 1e-7)) is None
