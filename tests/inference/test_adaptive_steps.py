"""Steps that adapt to prompts: the grid, what it costs, and decoding on it."""

import dataclasses

import numpy as np
import pytest
from cases import TINY, mesh_of, params_of

from diffeq_former.errors import UserError
from diffeq_former.inference.adaptive_steps import adapt, adaptive_solver, integrate
from diffeq_former.inference.generate import Generator
from diffeq_former.models.transformer import Transformer

EOT = 3
CONTEXTS = [[EOT, 5, 6, 7], [EOT, 8, 9, 10, 11, 12, 13, 14]]
# Weights that change slowly, so that the steps do not depend on rounding.
CONFIG = dataclasses.replace(
    TINY, max_len=16, horizon=8.0, time_scale=5.0, solver="heun"
)
RTOL = 0.1


def adapted_to(config, contexts, rtol=RTOL):
    return adapt(config, params_of(config), contexts, mesh_of(), rtol)


@pytest.mark.parametrize(
    ("block", "solver"),
    [("gpt", "heun"), ("llama", "midpoint"), ("gpt", "diffrax:Bosh3")],
)
def test_our_steps_on_the_grid_are_those_of_diffrax(block, solver):
    config = dataclasses.replace(CONFIG, block=block, solver=solver)
    model, params = Transformer(config), params_of(config)
    tokens_BL = np.array([CONTEXTS[1]])
    adapted = adapted_to(config, [CONTEXTS[1]])
    given = integrate(model, params, tokens_BL, adaptive_solver(config, RTOL))
    assert adapted.num_evaluations == given.num_evaluations
    assert adapted.config.num_layers == np.isfinite(given.points).sum() > 3
    bound = {"params": params}
    expected = model.apply(bound, given.x, method="normalise")
    found = Transformer(adapted.config).apply(
        bound, tokens_BL, grid=adapted.grid, method="hidden"
    )
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("time_segments", [0, CONFIG.num_layers])
def test_cached_decoding_is_the_full_forward_pass_on_the_grid(time_segments):
    config = dataclasses.replace(CONFIG, solver="heun", time_segments=time_segments)
    params, adapted = params_of(config), adapted_to(config, CONTEXTS)
    generator = Generator(adapted.config, mesh_of(), grid=adapted.grid)
    prompts = [context[1:] for context in CONTEXTS]
    rows = generator.generate(
        params, prompts, max_new_tokens=6, temperature=0.0, before=[EOT], ends=[EOT]
    )
    model = Transformer(adapted.config)
    for context, row in zip(CONTEXTS, rows, strict=True):
        tokens_BL = np.array([[*context, *row]])
        [logits_LV] = model.apply({"params": params}, tokens_BL, grid=adapted.grid)
        likeliest = np.asarray(logits_LV.argmax(axis=1))[len(context) - 1 :].tolist()
        assert row == likeliest[: len(row)]
        assert len(row) == 6 or likeliest[len(row)] == EOT


def test_padding_does_not_count():
    config = dataclasses.replace(CONFIG, solver="heun")
    tokens_BL, solver = np.array([CONTEXTS[0]]), adaptive_solver(config, RTOL)
    expected = integrate(Transformer(config), params_of(config), tokens_BL, solver)
    ends = np.cumsum(adapted_to(config, [CONTEXTS[0]]).grid.lengths_T)
    points = np.asarray(expected.points)
    np.testing.assert_allclose(ends, points[np.isfinite(points)], atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "rtol", "message"),
    [
        (
            {"solver": "euler"},
            0.1,
            "solver=euler: it has no estimate of its error, by which steps",
        ),
        ({"solver": "heun"}, 1e-12, "rtol=1e-12: heun takes too many steps for this"),
    ],
)
def test_what_cannot_adapt(changes, rtol, message):
    given = dataclasses.replace(CONFIG, **changes)
    stored = dataclasses.replace(given, solver="euler")
    with pytest.raises(UserError, match=message):
        adapt(given, params_of(stored), CONTEXTS, mesh_of(), rtol)
