"""Orders on the model's own field, where that is smooth, are the solvers'."""

import dataclasses

import pytest
from cases import TINY, in_two_lots, params_of, tokens_of

from diffeq_former.analysis.convergence import (
    end_of_depth,
    flow,
    measured_order,
    relative_error,
)
from diffeq_former.ode.solvers import SOLVERS, Splitting

SMOOTH = dataclasses.replace(TINY, time_scale=2.0)
COUNTS = {1: (32, 64, 128), 2: (16, 32, 64), 4: (6, 8, 12)}


@pytest.fixture(scope="module")
def case():
    params, tokens_BL = params_of(SMOOTH, stddev=0.1), tokens_of(SMOOTH)
    return params, tokens_BL, flow(SMOOTH, params, tokens_BL, 64)


@pytest.mark.parametrize("solver", in_two_lots(SOLVERS, ("euler", "rk4").__contains__))
def test_order_of_the_models_field(case, solver):
    params, tokens_BL, exact = case
    method = SOLVERS[solver]
    # Attention and feed-forward bend along themselves: see Splitting.
    order = 1 if isinstance(method, Splitting) else method.order
    counts = COUNTS[order]
    errors = [
        relative_error(end_of_depth(SMOOTH, params, tokens_BL, solver, n), exact)
        for n in counts
    ]
    assert measured_order(counts, errors) == pytest.approx(order, abs=0.15)


def test_only_errors_that_tell_are_measured():
    counts = (1, 2, 4, 8, 16)
    assert measured_order(counts, (0.9, 0.08, 0.02, 0.005, 1e-7)) == pytest.approx(2)
    assert measured_order(counts, (0.9, 0.8, 0.02, 1e-6, 1e-7)) is None
