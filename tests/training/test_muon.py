"""Muon against its definition in float64, on stored and on generated kernels."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TINY, params_of

from diffeq_former.config import Config, OptimizerConfig, TrainingConfig
from diffeq_former.config.validation import validate
from diffeq_former.errors import UserError
from diffeq_former.hardware import CPU
from diffeq_former.models.blocks import linear_specs
from diffeq_former.models.grid import default_grid
from diffeq_former.training.bank_gradient import BankGradient
from diffeq_former.training.muon import SINGULAR
from diffeq_former.training.parts import Parts, partition
from diffeq_former.training.update import SKIP, UPDATE, Update

C = OptimizerConfig(
    learning_rate=0.1,
    schedule="constant",
    warmup_fraction=0.0,
    weight_decay=0.3,
    clip_norm=0.5,
    bank_multiplier=0.7,
)
NORMS = (2.0, 5.0)  # of the gradients of two steps, by which they are clipped
HYPERNETWORKS = {
    "gpt": TINY,
    "llama": dataclasses.replace(TINY, block="llama", num_kv_heads=1, solver="heun"),
    "without a base": dataclasses.replace(TINY, base=False),
}
STORED = {
    "layer_table": dataclasses.replace(
        TINY, weights="layer_table", solver="lie_trotter"
    ),
    "shared": dataclasses.replace(TINY, weights="shared", block="llama"),
}


def gradients_of(c, params: Parts, seed: int) -> Parts:
    """Random gradients, those of bases as they follow from the banks'."""
    random, T = np.random.default_rng(seed), default_grid(c).times_TS.size

    def sample(*shape):
        return jnp.asarray(random.normal(size=shape), jnp.float32)

    rest = jax.tree.map(lambda x: sample(*x.shape), params.rest)
    banks = {
        name: BankGradient(sample(T, len(bank)), sample(T, *bank.shape[1:]))
        for name, bank in params.banks.items()
    }
    for name, gradient in banks.items():
        if c.base:
            rest["weights"][name]["base"] = gradient.kernels_T.sum(0)
    return Parts(rest=rest, banks=banks, frozen={})


def updated(name: str, c, gradients: list[Parts], action=UPDATE):
    params = partition(Config(), params_of(c))
    update = Update(dataclasses.replace(C, name=name), 10, c)
    opt_state = update.init(params)
    apply = jax.jit(functools.partial(update.apply, hardware=CPU))
    for g, norm in zip(gradients, NORMS, strict=True):
        done = apply(g, jnp.float32(norm), opt_state, params, jnp.int32(action))
        params, opt_state = done.params, done.opt_state
    return params, opt_state


def two_gradients(c) -> list[Parts]:
    params = partition(Config(), params_of(c))
    return [gradients_of(c, params, seed) for seed in range(2)]


def directions(spec, gradients: list) -> list[np.ndarray]:
    """Return the directions of two updates of stacked kernels [..., *kernel]."""
    momentum, found = 0.0, []
    for k, (g, norm) in enumerate(zip(gradients, NORMS, strict=True), start=1):
        g = C.clip_norm / norm * np.asarray(g, np.float64)
        momentum = 0.95 * momentum + 0.05 * g
        # Nesterov's, with both of its terms unbiased.
        ahead = 0.95 * momentum / (1 - 0.95 ** (k + 1)) + 0.05 * g / (1 - 0.95**k)
        found.append(orthogonal(spec, ahead))
    return found


def orthogonal(spec, kernels: np.ndarray) -> np.ndarray:
    if fused := "qkv" in spec.axes:
        kernels = np.moveaxis(kernels, -3, 0)
    rows = math.prod(spec.input_shape)
    columns = math.prod(spec.kernel) // rows // (3 if fused else 1)
    found = np.stack([newton_schulz(x) for x in kernels.reshape(-1, rows, columns)])
    found = 0.2 * max(rows, columns) ** 0.5 * found.reshape(kernels.shape)
    return np.moveaxis(found, 0, -3) if fused else found


def newton_schulz(x: np.ndarray) -> np.ndarray:
    x = x / np.linalg.norm(x)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x - 4.775 * square @ x + 2.0315 * square @ square @ x
    return x


def assert_moved(found, before, along: list, multiplier: float):
    lr, expected = C.learning_rate * multiplier, np.asarray(before, np.float64)
    for direction in along:
        expected = expected - lr * (direction + C.weight_decay * expected)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3 * lr)


@pytest.mark.parametrize("name", ["muon", "weight_space_muon"])
@pytest.mark.parametrize("source", STORED)
def test_stored_kernels(source, name):
    """In weight space and as they are stored is the same for these."""
    c, before = STORED[source], params_of(STORED[source])
    gradients = two_gradients(c)
    params, _ = updated(name, c, gradients)
    for layer, spec in linear_specs(c).items():
        along = [g.rest["weights"][layer]["kernel"] for g in gradients]
        assert_moved(
            params.rest["weights"][layer]["kernel"],
            before["weights"][layer]["kernel"],
            directions(spec, along),
            C.base_multiplier,
        )


@pytest.mark.parametrize("block", HYPERNETWORKS)
def test_banks_and_bases(block):
    c, before = HYPERNETWORKS[block], params_of(HYPERNETWORKS[block])
    gradients = two_gradients(c)
    params, _ = updated("muon", c, gradients)
    for layer, spec in linear_specs(c).items():
        old = before["weights"][layer]
        banks = directions(spec, [g.banks[layer].materialise() for g in gradients])
        assert_moved(params.banks[layer], old["bank"], banks, C.bank_multiplier)
        if not c.base:
            continue
        bases = directions(spec, [g.rest["weights"][layer]["base"] for g in gradients])
        found = params.rest["weights"][layer]["base"]
        assert_moved(found, old["base"], bases, C.base_multiplier)


def smallest_changes(u_TE, directions_T, has_base: bool) -> tuple:
    """Return changes of bank and base, over their multipliers, that move all W(t_k).

    Of those that come nearest to the directions, they have the least sum of squares,
    each divided by its multiplier.
    """
    roots = np.sqrt([C.bank_multiplier, C.base_multiplier])
    moves_TN = roots[0] * np.asarray(u_TE, np.float64)
    if has_base:
        moves_TN = np.concatenate([moves_TN, np.full((len(u_TE), 1), roots[1])], 1)
    flat = directions_T.reshape(len(u_TE), -1)
    found, _, rank, _ = np.linalg.lstsq(moves_TN, flat, rcond=SINGULAR**0.5)
    if rank == len(u_TE):
        np.testing.assert_allclose(moves_TN @ found, flat, atol=1e-9)
    found = found.reshape(-1, *directions_T.shape[1:])
    return found[: u_TE.shape[1]] / roots[0], found[-1] / roots[1]


@pytest.mark.parametrize("block", HYPERNETWORKS)
def test_generated_kernels(block, monkeypatch):
    """Each W(t_k) moves as a stored one does; with more times than E, nearly so."""
    monkeypatch.setattr("diffeq_former.training.update.rows_at_once", lambda *_: 2)
    c, before = HYPERNETWORKS[block], params_of(HYPERNETWORKS[block])
    gradients = two_gradients(c)
    params, _ = updated("weight_space_muon", c, gradients)
    for layer, spec in linear_specs(c).items():
        old = before["weights"][layer]
        factors = [g.banks[layer] for g in gradients]
        kernels = directions(spec, [g.kernels_T for g in factors])
        banks, bases = zip(
            *(
                smallest_changes(g.u_TE, k, c.base)
                for g, k in zip(factors, kernels, strict=True)
            ),
            strict=True,
        )
        assert_moved(params.banks[layer], old["bank"], banks, C.bank_multiplier)
        if c.base:
            found = params.rest["weights"][layer]["base"]
            assert_moved(found, old["base"], bases, C.base_multiplier)


@pytest.mark.parametrize("name", ["muon", "weight_space_muon"])
def test_gradients_in_bfloat16(name):
    """Of which those of generated kernels are in models of this dtype."""
    gradients = [
        g.replace(
            banks={
                layer: of.replace(kernels_T=of.kernels_T.astype(jnp.bfloat16))
                for layer, of in g.banks.items()
            }
        )
        for g in two_gradients(TINY)
    ]
    params, expected = (
        updated(name, TINY, g)[0] for g in (gradients, two_gradients(TINY))
    )
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=0, atol=0.02),
        params.merge(),
        expected.merge(),
    )


@pytest.mark.parametrize("name", ["muon", "weight_space_muon"])
def test_everything_else_is_updated_as_by_adamw(name):
    gradients = two_gradients(TINY)
    (found, _), (expected, _) = (updated(x, TINY, gradients) for x in (name, "adamw"))
    for params in (found, expected):
        for layer in linear_specs(TINY):
            del params.rest["weights"][layer]["base"]
    jax.tree.map(np.testing.assert_array_equal, found.rest, expected.rest)


@pytest.mark.parametrize("name", ["muon", "weight_space_muon"])
def test_a_skipped_step_changes_no_bit(name):
    gradients = jax.tree.map(lambda g: g * jnp.nan, two_gradients(TINY))
    params = partition(Config(), params_of(TINY))
    opt_state = Update(dataclasses.replace(C, name=name), 10, TINY).init(params)
    jax.tree.map(
        np.testing.assert_array_equal,
        updated(name, TINY, gradients, SKIP),
        (params, opt_state),
    )


def test_moments_in_weight_space_are_those_of_the_times():
    _, opt_state = updated("weight_space_muon", TINY, two_gradients(TINY))
    sizes = sorted(x.size for x in jax.tree.leaves(opt_state.kernels) if x.ndim > 1)
    assert sizes == sorted(
        TINY.num_layers * math.prod(spec.kernel) for spec in linear_specs(TINY).values()
    )
    assert all(x.ndim < 3 for x in jax.tree.leaves(opt_state.banks))


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            {"optimizer": {"factored_bank": True}},
            "factored_bank: weight_space_muon has",
        ),
        ({"model": {"generate_weights": "per_step"}}, "or model.generate_weights=tab"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_weight_space(settings, message):
    config = Config(
        model=TINY,
        optimizer=dataclasses.replace(C, name="weight_space_muon"),
        training=TrainingConfig(),
    )
    for section, values in settings.items():
        changed = dataclasses.replace(getattr(config, section), **values)
        config = dataclasses.replace(config, **{section: changed})
    with pytest.raises(UserError, match=message):
        validate(config)
