"""Which stabilisers go with which models; what they compute: beside and all suites."""

import pytest

from diffeq_former.config import ModelConfig, Stabilisers
from diffeq_former.config.model_validation import validate_model
from diffeq_former.errors import UserError

POST, NONE, HALF = Stabilisers(norm="post"), Stabilisers(norm="none"), Stabilisers(0.5)


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"stabilisers": Stabilisers(norm="rms")},
            "config.model.stabilisers.norm: expected one of pre, post, none, got 'rms'",
        ),
        (
            {"stabilisers": Stabilisers(1.5)},
            "config.model.stabilisers.residual: expected at most 1, got 1.5",
        ),
        (
            {"stabilisers": HALF, "solver": "strang"},
            "residual: strang evaluates a term more than once per step, which requires",
        ),
        (
            {"stabilisers": HALF, "solver": "rk4"},
            "residual: rk4 evaluates a term more than once per step, which requires",
        ),
        (
            {"stabilisers": POST},
            "norm: post normalises the state after each term, but euler does not",
        ),
        (
            {"stabilisers": POST, "solver": "strang"},
            "norm: post normalises the state after each term, but strang does not",
        ),
        (
            {"stabilisers": NONE, "block": "llama", "chain_norms": True},
            "chain_norms: True requires norms of the terms' inputs, but model",
        ),
    ],
    ids=str,
)
def test_refuses(changes, message):
    with pytest.raises(UserError) as refusal:
        validate_model(ModelConfig(**changes))
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
