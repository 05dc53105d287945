"""Properties of the whole model, over all blocks, sources and solvers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    TINY,
    allowed,
    allowed_in_turn,
    in_two_lots,
    name,
    on_pieces,
    params_of,
    stabilised,
    tokens_of,
)

from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.remat import POLICIES, SAVE_WEIGHTS
from diffeq_former.models.step import Step
from diffeq_former.models.transformer import Transformer
from diffeq_former.ode.grid import Grid, draw, stage_times
from diffeq_former.ode.solvers import SOLVERS

every_model = pytest.mark.parametrize(
    "config", allowed() + stabilised() + on_pieces(), ids=name
)
every_block = pytest.mark.parametrize("block", BLOCKS)


def logits_of(config, params, tokens, **options):
    return jax.jit(Transformer(config).apply)({"params": params}, tokens, **options)


def loss_and_grads(config, params, tokens, rngs=None):
    def loss(params):
        model = Transformer(config, train=rngs is not None)
        logits = model.apply({"params": params}, tokens, rngs=rngs)
        return jnp.square(jax.nn.log_softmax(logits)[..., 0]).mean()

    return jax.jit(jax.value_and_grad(loss))(params)


def assert_trees_close(ours, theirs, rtol=1e-4):
    def check(a, b):
        scale = max(np.abs(b).max(), 1e-6)
        np.testing.assert_allclose(a, b, rtol=0, atol=rtol * scale)

    jax.tree.map(check, ours, theirs)


@every_model
def test_causality(config):
    """A later token's embedding moves nothing before it, and all that comes after."""
    params, tokens_BL = params_of(config), np.arange(config.max_len)[None]
    token_VD = params["embedding"]["token"]

    def hidden(token_VD):
        changed = params | {"embedding": params["embedding"] | {"token": token_VD}}
        apply = Transformer(config).apply
        return apply({"params": changed}, tokens_BL, method="hidden")[0]

    @jax.jit
    def moved(place):
        direction_VD = jax.nn.one_hot(place, len(token_VD))[:, None] + 0 * token_VD
        direction_VD = direction_VD.at[:, 0].multiply(2.0)
        return jnp.abs(jax.jvp(hidden, (token_VD,), (direction_VD,))[1]).sum(-1)

    for place in range(config.max_len):
        moved_L = np.asarray(moved(place))
        assert (moved_L[:place] == 0).all()
        assert (moved_L[place:] > 0).all()


@every_model
def test_cached_decoding_equals_the_full_forward_pass(config):
    """Prompts of two lengths, padded on the right, then token by token."""
    params, tokens_BL = params_of(config), tokens_of(config)
    model = Transformer(config, cached=True)
    full_BLV, table = jax.jit(
        lambda p: (
            Transformer(config).apply({"params": p}, tokens_BL),
            model.apply({"params": p}, method="tabulate"),
        )
    )(params)

    @jax.jit
    def decode(cache, tokens_BL, positions_BL):
        return model.apply(
            {"params": params, **cache},
            tokens_BL,
            positions_BL=positions_BL,
            table=table,
            mutable=["cache"],
        )

    lengths_B, L = np.array([2, 4]), config.max_len
    prompt_BL = np.where(np.arange(4)[None] < lengths_B[:, None], tokens_BL[:, :4], 0)
    positions_BL = np.broadcast_to(np.arange(4)[None], (2, 4))
    logits_BLV, cache = decode({}, prompt_BL, positions_BL)
    for row, length in enumerate([2, 4]):
        close(logits_BLV[row, :length], full_BLV[row, :length])
    rows_B = np.arange(2)
    for step in range(L - 4):
        at_B = lengths_B + step
        logits_BLV, cache = decode(
            cache, tokens_BL[rows_B, at_B][:, None], at_B[:, None]
        )
        close(logits_BLV[:, 0], full_BLV[rows_B, at_B])


def close(a, b, atol=2e-5):
    np.testing.assert_allclose(a, b, rtol=0, atol=atol)


@pytest.mark.parametrize(
    "config",
    in_two_lots(
        allowed_in_turn(generate_weights="per_step")
        + [dataclasses.replace(c, generate_weights="per_step") for c in on_pieces()],
        lambda config: config.weights == "hypernetwork",
    ),
    ids=name,
)
def test_tabulated_equals_per_step(config):
    tabulated = dataclasses.replace(config, generate_weights="tabulated")
    params, tokens_BL = params_of(config), tokens_of(config)
    loss, grads = loss_and_grads(config, params, tokens_BL)
    expected_loss, expected_grads = loss_and_grads(tabulated, params, tokens_BL)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    assert_trees_close(grads, expected_grads)


@pytest.mark.parametrize("config", allowed(weights="layer_table"), ids=name)
def test_a_table_on_its_own_grid_is_the_same_model(config):
    """Discretising a hypernetwork where it was trained changes nothing."""
    continuous = dataclasses.replace(config, weights="hypernetwork")
    params, tokens_BL = params_of(continuous), tokens_of(config)
    apply = Transformer(continuous).apply
    table = jax.jit(lambda p: apply({"params": p}, method="tabulate"))(params)
    stored = params | {"weights": jax.tree.map(lambda w: w[:, 0], table)}
    discrete = dataclasses.replace(config, horizon=continuous.interval)
    np.testing.assert_array_equal(
        logits_of(discrete, stored, tokens_BL), logits_of(continuous, params, tokens_BL)
    )


@pytest.mark.parametrize(
    "config",
    in_two_lots(allowed(weights="hypernetwork"), lambda config: config.block == "gpt"),
    ids=name,
)
def test_steps_on_a_drawn_grid_are_steps_of_their_lengths(config):
    """Each against one step of a model whose interval is as long as it."""
    params, tokens_BL = params_of(config), tokens_of(config)
    nodes = SOLVERS[config.solver].nodes
    grid = draw("jittered", jax.random.key(2), config.num_layers, nodes)

    @jax.jit
    def run(params):
        model, variables = Transformer(config), {"params": params}
        table = model.apply(variables, grid, method="tabulate")
        _, sown = model.apply(
            variables, tokens_BL, grid=grid, mutable=["intermediates"]
        )
        return table, sown["intermediates"]["depth"]["state"][0]

    table, states_TBLD = run(params)
    positions_BL = np.broadcast_to(np.arange(config.max_len)[None], tokens_BL.shape)
    for k in range(1, config.num_layers):
        length = config.interval * float(grid.lengths_T[k])
        one = dataclasses.replace(config, num_layers=1, horizon=length)
        weights_S = jax.tree.map(lambda w, k=k: w[k], table)
        step = Step(one, train=False, cached=False).apply
        context = (None, positions_BL, None)
        x_BLD, _ = step({}, states_TBLD[k - 1], (weights_S, None), context)
        close(x_BLD, states_TBLD[k])


@pytest.mark.parametrize(
    "generate, dtype", [("tabulated", "bfloat16"), ("per_step", "float32")]
)
def test_without_a_grid_steps_are_equal(generate, dtype):
    config = dataclasses.replace(TINY, generate_weights=generate, dtype=dtype)
    params, tokens_BL = params_of(config), tokens_of(config)
    n = config.num_layers
    grid = Grid(stage_times(n, SOLVERS[config.solver].nodes), jnp.full(n, 1 / n))
    expected = logits_of(config, params, tokens_BL)
    close(logits_of(config, params, tokens_BL, grid=grid), expected)


@pytest.mark.parametrize("config", allowed(weights="shared"), ids=name)
def test_a_hypernetwork_with_zero_banks_is_shared(config):
    varying = dataclasses.replace(config, weights="hypernetwork")
    params, tokens_BL = params_of(varying), tokens_of(config)

    def still(path, x):
        return jnp.zeros_like(x) if path[-1].key.endswith("bank") else x

    params["weights"] = jax.tree_util.tree_map_with_path(still, params["weights"])
    shared = params_of(config)
    for unit, stored in shared["weights"].items():
        if "kernel" in stored:
            stored["kernel"] = params["weights"][unit]["base"]
        else:
            stored["scale"] = jnp.ones_like(stored["scale"])
        for key in ("bias", "shift"):
            if key in stored:
                stored[key] = jnp.zeros_like(stored[key])
    shared = {k: shared[k] if k == "weights" else params[k] for k in params}
    close(logits_of(config, shared, tokens_BL), logits_of(varying, params, tokens_BL))


@pytest.fixture(scope="module", params=in_two_lots(BLOCKS, "gpt".__eq__))
def without_remat(request):
    config = dataclasses.replace(TINY, block=request.param, dropout=0.1)
    return config, loss_and_grads(*dropped_case(config))


def dropped_case(config):
    return config, params_of(config), tokens_of(config), {"dropout": jax.random.key(3)}


@pytest.mark.parametrize("remat", sorted(POLICIES.keys() - {"none"}))
def test_remat_changes_no_value(without_remat, remat):
    config, (expected_loss, expected_grads) = without_remat
    generate = "per_step" if remat in SAVE_WEIGHTS else "tabulated"
    config = dataclasses.replace(config, remat=remat, generate_weights=generate)
    loss, grads = loss_and_grads(*dropped_case(config))
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
    assert_trees_close(grads, expected_grads, rtol=1e-5)


@pytest.mark.parametrize("config", stabilised()[:3:2], ids=name)
def test_remat_changes_no_value_of_stabilised_models(config):
    expected_loss, expected_grads = loss_and_grads(*dropped_case(config))
    recomputed = dataclasses.replace(config, remat="full")
    loss, grads = loss_and_grads(*dropped_case(recomputed))
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
    assert_trees_close(grads, expected_grads, rtol=1e-5)


@pytest.mark.parametrize("remat", sorted(POLICIES.keys() - {"none"}))
def test_remat_saves_what_its_name_says(remat):
    """Counts what each step leaves for the backward pass, beside its input."""
    config = dataclasses.replace(
        TINY, remat=remat, generate_weights="per_step", block="llama"
    )
    params, tokens_BL = params_of(config), tokens_of(config)

    def loss(params):
        return Transformer(config).apply({"params": params}, tokens_BL).sum()

    attention = (config.num_layers, *tokens_BL.shape, 2, config.head_dim)
    kernel = (config.num_layers, 1, config.d_model, config.ff_dim)
    shapes = _stacked_residuals(loss, params)
    assert (attention in shapes) == (remat != "full" and remat != "save_weights")
    assert (kernel in shapes) == (remat in SAVE_WEIGHTS)


def _stacked_residuals(loss, params) -> set[tuple[int, ...]]:
    """Shapes of the forward scan's stacked outputs."""
    jaxpr = jax.make_jaxpr(jax.grad(loss))(params).jaxpr
    scans = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]
    return {v.aval.shape for v in scans[0].outvars}


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


@every_block
def test_bfloat16_is_near_float32(block):
    config = dataclasses.replace(TINY, block=block)
    params, tokens_BL = params_of(config, stddev=0.1), tokens_of(config)
    exact = logits_of(config, params, tokens_BL)
    low = dataclasses.replace(config, dtype="bfloat16")
    rounded = logits_of(low, params, tokens_BL)
    assert rounded.dtype == jnp.float32
    error = jnp.linalg.norm(rounded - exact) / jnp.linalg.norm(exact)
    assert 0 < error < 0.02
