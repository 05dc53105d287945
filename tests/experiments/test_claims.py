"""Verdicts on claims, by their rule."""

import pytest

from diffeq_former.experiments.claims import Claim, verdict

CLAIM = Claim("a is less", "size", {"model": "a"}, {"model": "b", "layers": 2})


def rows(a, b):
    found = [{"model": "a", "seed": seed, "size": x} for seed, x in enumerate(a)]
    for seed, x in enumerate(b):
        found += [
            {"model": "b", "layers": 2, "seed": seed, "size": x},
            {"model": "b", "layers": 3, "seed": seed, "size": -1.0},
        ]
    return found


@pytest.mark.parametrize(
    ("a", "b", "expected", "difference"),
    [
        ((1, 2, 3), (2, 4, 4), "supported", "-50.0% [-50.0%, -25.0%]"),
        ((2, 4, 4), (1, 2, 2), "contradicted", "+100.0% [+100.0%, +100.0%]"),
        ((1, 4), (2, 2), "undecided", "+25.0% [-50.0%, +100.0%]"),
        ((2, 1), (2, 2), "undecided", "-25.0% [-50.0%, +0.0%]"),
    ],
)
def test_a_claim_holds_if_it_does_for_every_seed(a, b, expected, difference):
    found = verdict(CLAIM, rows(a, b))
    assert found == {
        "claim": "a is less",
        "verdict": expected,
        "seeds": len(a),
        "difference": difference,
    }


def test_seeds_of_one_model_alone_are_left_out():
    found = verdict(CLAIM, rows((1, 9, 9), (2,)))
    assert (found["verdict"], found["seeds"]) == ("supported", 1)
