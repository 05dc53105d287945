"""Properties of the whole model, over blocks, sources and solvers."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    TINY,
    at_other_depths,
    coupled,
    covering,
    is_allowed,
    model,
    name,
    params_of,
    stabilised,
    tokens_of,
    uneven_grid,
    with_options,
)

from diffeq_former.hardware import CPU
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.grid import default_grid
from diffeq_former.models.step import Step
from diffeq_former.models.transformer import Transformer
from diffeq_former.models.weight_sources import SOURCES
from diffeq_former.ode.grid import Grid
from diffeq_former.ode.solvers import SOLVERS

every_block = pytest.mark.parametrize("block", BLOCKS)


def over(*configs):
    return pytest.mark.parametrize("config", configs, ids=name)


def test_dropout_is_only_for_training():
    """Without `train`, no random key is needed."""
    dense = dataclasses.replace(TINY, attention_implementation="xla")
    config = dataclasses.replace(dense, dropout=0.5, attention_dropout=0.5)
    params, tokens_BL = params_of(config), tokens_of(config)
    plain = Transformer(dense).apply({"params": params}, tokens_BL)
    found = Transformer(config).apply({"params": params}, tokens_BL)
    np.testing.assert_array_equal(plain, found)


def test_every_two_of_block_source_and_solver_meet():
    """In `covering`, where they are allowed together."""
    parts = {"block": BLOCKS, "weights": SOURCES, "solver": SOLVERS}
    configs = [
        dataclasses.replace(TINY, **dict(zip(parts, values, strict=True)))
        for values in itertools.product(*parts.values())
    ]
    for two in itertools.combinations(parts, 2):
        met, wanted = (
            {tuple(getattr(c, field) for field in two) for c in among}
            for among in (covering(), filter(is_allowed, configs))
        )
        assert met == wanted


@functools.cache
def compiled(config, method):
    apply = Transformer(config).apply
    return jax.jit(
        lambda params, *args: apply({"params": params}, *args, method=method)
    )


def logits_of(config, params, tokens_BL):
    return compiled(config, logits_and_table)(params, tokens_BL)[0]


def logits_and_table(module, tokens_BL):
    table = module.tabulate()
    return module(tokens_BL, table=table), table


@over(*covering(), with_options(), coupled())
def test_causality(config):
    """Another token changes nothing before it, and all that comes after."""
    params, tokens_BL = params_of(config), tokens_of(config)
    logits_BLV = logits_of(config, params, tokens_BL)
    for place in range(config.max_len):
        changed_BL = tokens_BL.copy()
        changed_BL[:, place] = (tokens_BL[:, place] + 1) % config.vocab_size
        moved_BLV = logits_of(config, params, changed_BL) - logits_BLV
        moved_BL = np.abs(moved_BLV).max(-1)
        assert (moved_BL[:, :place] == 0).all()
        assert (moved_BL[:, place:] > 1e-6).all()


# Only attention is cached: each solver, and each block with one attention a step and
# with several.
@over(
    at_other_depths()[0],
    stabilised()[1],
    model("llama", "layer_table", "strang"),
    model("gpt", "shared", "midpoint"),
    at_other_depths()[1],
    model("gpt", "shared", "rk4"),
    with_options(),
    coupled(),
    model("gpt", "hypernetwork", "heun", positions="rotary", rope_fraction=0.5),
)
def test_cached_decoding_equals_the_full_forward_pass(config):
    """Prompts of two lengths, padded on the right, then token by token."""
    params, tokens_BL = params_of(config), tokens_of(config)
    full_BLV, table = compiled(config, logits_and_table)(params, tokens_BL)

    @jax.jit
    def decode(params, table, cache, tokens_BL, positions_BL):
        return Transformer(config, cached=True).apply(
            {"params": params, **cache},
            tokens_BL,
            positions_BL=positions_BL,
            table=table,
            mutable=["cache"],
        )

    lengths_B, L = np.array([2, 4]), config.max_len
    prompt_BL = np.where(np.arange(4)[None] < lengths_B[:, None], tokens_BL[:, :4], 0)
    positions_BL = np.broadcast_to(np.arange(4)[None], (2, 4))
    logits_BLV, cache = decode(params, table, {}, prompt_BL, positions_BL)
    for row, length in enumerate([2, 4]):
        close(logits_BLV[row, :length], full_BLV[row, :length])
    rows_B = np.arange(2)
    for step in range(L - 4):
        at_B = lengths_B + step
        logits_BLV, cache = decode(
            params, table, cache, tokens_BL[rows_B, at_B][:, None], at_B[:, None]
        )
        close(logits_BLV[:, 0], full_BLV[rows_B, at_B])


def close(a, b, atol=2e-5):
    np.testing.assert_allclose(a, b, rtol=0, atol=atol)


# Solvers of one, two and three times a step. Gradients: where remat saves weights.
@over(
    model("llama", "hypernetwork", "rk4"),
    model("gpt", "hypernetwork", "strang"),
    model("gpt", "shared", "midpoint"),
    at_other_depths()[0],
)
def test_tabulated_equals_per_step(config):
    params, tokens_BL = params_of(config), tokens_of(config)
    expected = logits_of(config, params, tokens_BL)
    generated = dataclasses.replace(config, generate_weights="per_step")
    close(compiled(generated, None)(params, tokens_BL), expected)


@over(TINY, stabilised()[1], model("gpt", "hypernetwork", "strang"))
def test_a_table_on_its_own_grid_is_the_same_model(config):
    """Discretising a hypernetwork where it was trained changes nothing."""
    params, tokens_BL = params_of(config), tokens_of(config)
    expected, table = compiled(config, logits_and_table)(params, tokens_BL)
    stored = params | {"weights": jax.tree.map(lambda w: w[:, 0], table)}
    discrete = dataclasses.replace(
        config, weights="layer_table", horizon=config.interval
    )
    np.testing.assert_array_equal(logits_of(discrete, stored, tokens_BL), expected)


@over(
    TINY,
    model("gpt", "hypernetwork", "strang"),
    model("llama", "hypernetwork", "heun"),
)
def test_a_step_on_an_uneven_grid_is_a_step_of_its_length(config):
    """The last, against one step of a model whose interval is as long as it."""
    params, tokens_BL = params_of(config), tokens_of(config)
    grid = uneven_grid(config)

    @jax.jit
    def run(params, grid):
        def states_and_table(module):
            table = module.tabulate(grid)
            module.hidden(tokens_BL, table=table, grid=grid)
            return table

        return Transformer(config).apply(
            {"params": params}, method=states_and_table, mutable=["intermediates"]
        )

    table, sown = run(params, grid)
    before_BLD, after_BLD = sown["intermediates"]["depth"]["state"][0][-2:]
    length = config.interval * float(grid.lengths_T[-1])
    assert abs(length / config.step_size - 1) > 0.05
    one = dataclasses.replace(config, num_layers=1, horizon=length)
    positions_BL = np.tile(np.arange(config.max_len), (len(tokens_BL), 1))
    context = (None, positions_BL, None, positions_BL[:, 0])
    step = jax.jit(Step(one, train=False, cached=False, hardware=CPU).apply)
    weights_S = jax.tree.map(lambda w: w[-1], table)
    found_BLD, _ = step({}, before_BLD, (weights_S, None), context)
    close(found_BLD, after_BLD)


@pytest.mark.parametrize(
    "generate, dtype", [("tabulated", "bfloat16"), ("per_step", "float32")]
)
def test_without_a_grid_steps_are_equal(generate, dtype):
    without = dataclasses.replace(TINY, dtype=dtype)
    config = dataclasses.replace(without, generate_weights=generate)
    params, tokens_BL = params_of(config), tokens_of(config)
    n = config.num_layers
    grid = Grid(default_grid(config).times_TS, np.full(n, 1 / n, "f4"))
    expected = logits_of(without, params, tokens_BL)
    found = jax.jit(Transformer(config).apply)({"params": params}, tokens_BL, grid=grid)
    close(found, expected)


# Solvers of one, two and three times a step.
@over(
    model("gpt", "shared", "euler"),
    model("llama", "shared", "midpoint"),
    model("gpt", "shared", "rk4"),
)
def test_a_hypernetwork_with_zero_banks_is_shared(config):
    """Its weights at all times of the solver are those that are stored."""
    varying = dataclasses.replace(config, weights="hypernetwork")
    params, shared = params_of(varying), params_of(config)

    def still(path, x):
        return jnp.zeros_like(x) if path[-1].key.endswith("bank") else x

    params["weights"] = jax.tree_util.tree_map_with_path(still, params["weights"])
    for unit, stored in shared["weights"].items():
        if "kernel" in stored:
            stored["kernel"] = params["weights"][unit]["base"]
        else:
            stored["scale"] = jnp.ones_like(stored["scale"])
        for key in ("bias", "shift"):
            if key in stored:
                stored[key] = jnp.zeros_like(stored[key])
    jax.tree.map(
        np.testing.assert_array_equal,
        compiled(varying, "tabulate")(params),
        compiled(config, "tabulate")(shared),
    )


@every_block
def test_the_program_does_not_grow_with_depth(block):
    def size(num_layers):
        config = dataclasses.replace(TINY, block=block, num_layers=num_layers)
        params = params_of(config)
        tokens_BL = tokens_of(config)

        def loss(params):
            return Transformer(config).apply({"params": params}, tokens_BL).sum()

        return str(jax.make_jaxpr(jax.grad(loss))(params)).count(" = ")  # equations

    assert size(48) == size(2)


@over(TINY, model("llama", "shared", "euler"))
def test_bfloat16_is_near_float32(config):
    params, tokens_BL = params_of(config, stddev=0.1), tokens_of(config)
    exact = logits_of(config, params, tokens_BL)
    low = dataclasses.replace(config, dtype="bfloat16")
    rounded = logits_of(low, params, tokens_BL)
    assert rounded.dtype == jnp.float32
    error = np.linalg.norm(rounded - exact) / np.linalg.norm(exact)
    assert 0 < error < 0.02
