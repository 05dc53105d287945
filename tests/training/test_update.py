"""Banks that are updated from the factors of their gradients, against plain AdamW."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import TINY, params_of

from diffeq_former.config import Config, OptimizerConfig
from diffeq_former.hardware import CPU
from diffeq_former.training.bank_gradient import BankGradient, is_gradient
from diffeq_former.training.optimizer import make_optimizer
from diffeq_former.training.parts import Parts, partition
from diffeq_former.training.update import (
    SKIP,
    UPDATE,
    UPDATE_AND_MEASURE,
    Update,
    norms,
    squares,
)

T = TINY.num_layers
C = OptimizerConfig(learning_rate=0.1, warmup_fraction=0.0, clip_norm=0.0)
NUM_STEPS = 50


@pytest.fixture(scope="module")
def params():
    """Parameters of every group, and two of the banks."""
    params = params_of(TINY)
    weights = {name: params["weights"][name] for name in ("ff_in", "attention_out")}
    weights["time_mlp"] = params["weights"]["time_mlp"]
    return partition(Config(), params | {"weights": weights})


def gradients_of(params: Parts, seed: int) -> Parts:
    """Of all arrays; of banks as factors."""
    random = np.random.default_rng(seed)

    def draw(path, x):
        if path[0].name != "banks":
            return jnp.asarray(random.normal(size=x.shape), jnp.float32)
        factors = (
            random.normal(size=(T, len(x))),
            random.normal(size=(T, *x.shape[1:])),
        )
        return BankGradient(*(jnp.asarray(f, jnp.float32) for f in factors))

    return jax.tree.map_with_path(draw, params)


def materialise(gradients: Parts) -> Parts:
    def whole(g):
        return jnp.einsum("te,t...->e...", *jax.tree.leaves(g)) if is_gradient(g) else g

    return jax.tree.map(whole, gradients, is_leaf=is_gradient)


def updated(c: OptimizerConfig, params, gradients: list):
    """After an update with each of them."""
    update = Update(c, NUM_STEPS, TINY)
    step = jax.jit(functools.partial(update.apply, hardware=CPU))
    done, opt_state = None, update.init(params)
    for g in gradients:
        norm = norms("n", squares(g))["n"]
        done = step(g, norm, opt_state, params, action_for(norm))
        params, opt_state = done.params, done.opt_state
    return done


def action_for(norm: jax.Array) -> jax.Array:
    return jnp.where(jnp.isfinite(norm), UPDATE_AND_MEASURE, SKIP)


def plainly(c: OptimizerConfig, params: Parts, gradients: list):
    """The same with optax alone, on all parameters at once."""
    params, gradients = params.merge(), [materialise(g).merge() for g in gradients]
    clip = optax.clip_by_global_norm(c.clip_norm) if c.clip_norm else optax.identity()
    optimizer = optax.chain(clip, make_optimizer(c, NUM_STEPS, TINY))
    opt_state = optimizer.init(params)
    for g in gradients:
        updates, opt_state = optimizer.update(g, opt_state, params)
        params = optax.apply_updates(params, updates)
    return params, updates


def assert_near(found, expected, rtol=2e-5):
    for (path, a), b in zip(
        jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True
    ):
        atol = rtol * np.abs(b).max()
        np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=str(path))


@pytest.mark.parametrize(
    "rows, settings, rtol",
    [
        (2, {"clip_norm": 0.5}, 2e-5),
        (4, {"clip_norm": 0.5, "weight_decay": 0.1}, 2e-5),
        (1, {"bank_multiplier": 0.3, "weight_decay": 0.5}, 2e-5),
        # Sums that are rounded differently may end on two sides of a rounding.
        (2, {"mu_dtype": "bfloat16", "nu_dtype": "bfloat16"}, 2**-7),
    ],
    ids=str,
)
def test_three_updates_are_adamws(params, settings, rtol, rows, monkeypatch):
    monkeypatch.setattr("diffeq_former.training.update.rows_at_once", lambda *_: rows)
    c = dataclasses.replace(C, **settings)
    gradients = [gradients_of(params, seed) for seed in range(3)]
    done = updated(c, params, gradients)
    expected, updates = plainly(c, params, gradients)
    assert_near(done.params.merge(), expected, rtol)
    assert_near(done.update_squares.merge(), squares(updates), 5 * rtol)
    assert_near(done.param_squares.merge(), squares(expected), 5 * rtol)


def test_factored_squares_take_the_whole_bank(params):
    c = dataclasses.replace(C, factored_bank=True)
    gradients = [gradients_of(params, seed) for seed in range(3)]
    expected, _ = plainly(c, params, gradients)
    assert_near(updated(c, params, gradients).params.merge(), expected)


def test_gradients_that_are_not_factored_are_taken_too(params):
    gradients = [gradients_of(params, 0)]
    whole = [materialise(g) for g in gradients]
    assert_near(updated(C, params, whole).params, updated(C, params, gradients).params)


def test_norms_of_factors_are_those_of_their_product(params):
    gradients = gradients_of(params, 0)
    found, expected = squares(gradients), squares(materialise(gradients))
    assert_near(found, expected)


def test_what_is_not_measured_changes_no_bit(params):
    gradients, update = gradients_of(params, 0), Update(C, NUM_STEPS, TINY)
    opt_state, norm = update.init(params), norms("n", squares(gradients))["n"]
    step = jax.jit(functools.partial(update.apply, hardware=CPU))
    measured, found = (
        step(gradients, norm, opt_state, params, action)
        for action in (UPDATE_AND_MEASURE, UPDATE)
    )
    jax.tree.map(np.testing.assert_array_equal, found[:2], measured[:2])
    assert all(jax.tree.leaves(measured[2:]))
    assert not any(jax.tree.leaves(found[2:]))


def test_what_is_not_finite_changes_no_bit(params):
    gradients = gradients_of(params, 0)
    bank = gradients.banks["ff_in"]
    broken = bank.replace(kernels_T=bank.kernels_T.at[0, 0, 0].set(jnp.inf))
    gradients.banks["ff_in"] = broken
    before = Update(C, NUM_STEPS, TINY).init(params)
    done = updated(C, params, [gradients])
    for a, b in zip(
        jax.tree.leaves((done.params, done.opt_state)),
        jax.tree.leaves((params, before)),
        strict=True,
    ):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert not any(jax.tree.leaves(done.update_squares))
    assert_near(done.param_squares, squares(params))


def test_no_gradient_of_a_bank_is_stored():
    """Nor a copy of the bank or of its moments: less than all of that is needed."""
    E, kernel = 96, (256, 1024)
    bank = jax.ShapeDtypeStruct((E, *kernel), "float32")
    factors = [jax.ShapeDtypeStruct((T, *rest), "float32") for rest in ((E,), kernel)]
    params = Parts(rest={}, banks={"ff_in": bank}, frozen={})
    gradients = params.replace(banks={"ff_in": BankGradient(*factors)})
    update = Update(C, NUM_STEPS, TINY)

    # In the order of the results, as what is donated is matched by order.
    def step(gradients, norm, params, opt_state):
        action = action_for(norm)
        return update.apply(gradients, norm, opt_state, params, action, CPU)[:2]

    compiled = (
        jax.jit(step, donate_argnums=(2, 3))
        .lower(
            gradients,
            jax.ShapeDtypeStruct((), "float32"),
            params,
            jax.eval_shape(update.init, params),
        )
        .compile()
    )
    needed = compiled.memory_analysis().temp_size_in_bytes
    assert needed < 0.4 * 4 * E * kernel[0] * kernel[1]
