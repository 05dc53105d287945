"""Transport cost and smoothness: their values, their gradients, what they do."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from accumulation import accumulated, batch_of, micro_batches, of_tree
from cases import TINY, params_of, uneven_grid

from diffeq_former.analysis import depth
from diffeq_former.config import Config, ModelConfig, TrainingConfig
from diffeq_former.models.grid import default_grid
from diffeq_former.models.loss import cross_entropy_sums
from diffeq_former.models.transformer import Transformer
from diffeq_former.training.smoothness import smoothness

PLAIN = {"weights": "layer_table", "solver": "lie_trotter", "num_layers": 2}
ROWS = 4


def config_of(transport_cost=0.0, smoothness=0.0, **model) -> Config:
    training = TrainingConfig(
        loss_chunk=3, transport_cost=transport_cost, smoothness=smoothness
    )
    return Config(model=dataclasses.replace(TINY, **model), training=training)


def table_of(c: ModelConfig, params: dict, grid=None) -> dict:
    return tabulate(c)({"params": params}, grid)


@functools.cache
def tabulate(c: ModelConfig):
    return jax.jit(
        lambda variables, grid: Transformer(c).apply(variables, grid, method="tabulate")
    )


def smoothness_of(table: dict, times) -> float:
    """Row by row, those at the time of the one before left out."""
    times, total, count = np.asarray(times, float).reshape(-1), 0.0, 0
    for unit in table.values():
        if "kernel" not in unit:
            continue
        rows = np.asarray(unit["kernel"], float).reshape(len(times), -1)
        count += rows.shape[1]
        for k in range(len(times) - 1):
            if times[k + 1] > times[k]:
                total += np.square(rows[k + 1] - rows[k]).sum() / (
                    times[k + 1] - times[k]
                )
    return total / count


def transport_cost_of(states_TBLD, lengths_T, targets_BL) -> float:
    """The mean over places with a target, of T + 1 states."""
    steps = np.square(np.diff(np.asarray(states_TBLD, float), axis=0)).mean(-1)
    return sum(s / h for s, h in zip(steps, lengths_T, strict=True))[
        targets_BL != -1
    ].mean()


@pytest.mark.parametrize(
    "is_uneven, model",
    [
        (True, {"solver": "heun"}),
        pytest.param(
            False,
            {"block": "llama", "dtype": "bfloat16", "remat": "dots"} | PLAIN,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_values(is_uneven, model):
    """Against states that the model sows, and its table."""
    config, batch = config_of(**model), batch_of(ROWS)
    c, params = config.model, params_of(config.model)
    grid = uneven_grid(c) if is_uneven else default_grid(c)
    losses, _ = accumulated(config, params, batch, 2, grid)

    def run(model):
        positions_BL = jnp.broadcast_to(jnp.arange(TINY.max_len)[None], (ROWS, 8))
        first_BLD = model.embedding(batch["inputs"], positions_BL)
        model.hidden(batch["inputs"], grid=grid)
        return first_BLD

    first_BLD, sown = jax.jit(
        lambda params: Transformer(c).apply(
            {"params": params}, method=run, mutable=["intermediates"]
        )
    )(params)
    [after_TBLD] = sown["intermediates"]["depth"]["state"]
    states = np.concatenate(
        [x.astype(np.float32) for x in (first_BLD[None], after_TBLD)]
    )
    lengths = 1 / c.num_layers if grid.lengths_T is None else np.asarray(grid.lengths_T)
    lengths_T = c.interval * np.broadcast_to(lengths, c.num_layers)
    cost = transport_cost_of(states, lengths_T, batch["targets"])
    # A bfloat16 state may be rounded otherwise in another program.
    rel = 1e-5 if c.dtype == "float32" else 2e-2
    assert float(losses["transport_cost"]) == pytest.approx(cost, rel)
    expected = smoothness_of(table_of(c, params, grid), grid.times_TS)
    assert float(losses["smoothness"]) == pytest.approx(expected, 1e-5)
    assert expected > 0.01


def test_gradients_are_those_of_finite_differences(x64):
    """Of states and tables that are computed in float64, by other functions."""
    batch = batch_of(ROWS)
    off, on = config_of(), config_of(transport_cost=0.2, smoothness=0.3)
    c = dataclasses.replace(on.model, dtype="float64")
    params = params_of(c)
    direction = jax.tree.map(lambda x: x / 0.2, params_of(c, seed=1))
    embed = jax.vmap(depth.embed, (None, None, 0))
    states = jax.vmap(depth.states, (None, None, 0), 1)

    def regulariser(distance: float) -> float:
        moved = jax.tree.map(
            lambda p, d: p.astype(float) + distance * d, params, direction
        )
        table = table_of(c, moved)
        states_TBLD = states(c, table, embed(c, moved, batch["inputs"]))
        lengths_T = [c.step_size] * c.num_layers
        times = default_grid(c).times_TS
        cost = transport_cost_of(states_TBLD, lengths_T, batch["targets"])
        return 0.2 * cost + 0.3 * smoothness_of(table, times)

    step = 1e-5
    slope = (regulariser(step) - regulariser(-step)) / (2 * step)
    with jax.enable_x64(False):
        gradients = [
            accumulated(x, params, batch, M)[1] for x, M in ((on, 2), (off, 1))
        ]
    own = jax.tree.map(lambda a, b: np.float64(a) - np.float64(b), *gradients)
    products = jax.tree.map(lambda g, d: np.sum(g * np.asarray(d)), own, direction)
    assert sum(jax.tree.leaves(products)) == pytest.approx(slope, 1e-4)


def test_without_weights_the_gradients_are_those_of_the_loss():
    config, batch = config_of(**PLAIN), micro_batches(batch_of(ROWS), 1)
    params = params_of(config.model)

    def sums(params, batch):
        model, bound = Transformer(config.model, train=True), {"params": params}
        inputs_BL, targets_BL = batch["inputs"][0], batch["targets"][0]
        x_BLD = model.apply(bound, inputs_BL, method="hidden")
        head_DV = model.apply(bound, method="unembedding")
        found = cross_entropy_sums(x_BLD, head_DV, targets_BL, 3)
        return found["loss"], found["tokens"]

    def plain(params, batch):
        gradients, tokens = jax.grad(sums, has_aux=True)(params, batch)
        return jax.tree.map(lambda g: g / tokens, gradients)

    def gradients(params, batch):
        return of_tree(config, params, batch, jax.random.key(0))[1].merge()

    found, expected = (
        jax.jit(function)(params, batch) for function in (gradients, plain)
    )
    near = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7)
    jax.tree.map(near, found, expected)


def test_weights_make_them_smaller():
    ends, batches = [], micro_batches(batch_of(ROWS), 1)
    for weights in ((0.0, 0.0), (3.0, 1000.0)):
        config = config_of(*weights, **PLAIN)
        step = jax.jit(
            lambda params, config=config: of_tree(
                config, params, batches, jax.random.key(0)
            )
        )
        params = params_of(config.model)
        for _ in range(10):
            losses, gradients = step(params)
            params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients.merge())
        ends.append(losses)
    for name in ("transport_cost", "smoothness"):
        assert ends[1][name] < 0.5 * ends[0][name], name


@pytest.mark.parametrize("model", [{"num_layers": 1}, {"weights": "shared"}])
def test_what_does_not_move_has_no_smoothness_to_lose(model):
    c = config_of(**model).model
    grid = default_grid(c)
    assert smoothness(table_of(c, params_of(c)), grid) == 0


def test_without_a_table_it_is_left_out():
    config = config_of(generate_weights="per_step")
    batches, key = micro_batches(batch_of(ROWS), 1), jax.random.key(0)
    function = functools.partial(of_tree, config)
    losses, _ = jax.eval_shape(function, params_of(config.model), batches, key)
    assert "transport_cost" in losses and "smoothness" not in losses
