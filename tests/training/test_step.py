import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TINY, mesh_of, params_of

from diffeq_former.config import Config, ModelConfig, OptimizerConfig, TrainingConfig
from diffeq_former.distributed.mesh import shard_batch
from diffeq_former.models.transformer import Transformer
from diffeq_former.training.optimizer import make_schedule
from diffeq_former.training.parts import partition
from diffeq_former.training.state import TrainState, make_update
from diffeq_former.training.step import make_train_step, make_train_steps, sample_depth

CONFIG = Config(
    seed=3,
    model=dataclasses.replace(
        TINY, weights="layer_table", solver="lie_trotter", num_layers=2, dropout=0.1
    ),
    optimizer=OptimizerConfig(learning_rate=1e-2, warmup_fraction=0.0),
    training=TrainingConfig(
        batch_size=16,
        per_device_batch_size=8,
        num_steps=60,
        log_every=3,
        spike_factor=1.2,
    ),
)


@pytest.fixture(scope="module")
def train_step():
    return make_train_step(CONFIG, mesh_of())


@pytest.fixture(scope="module")
def batch():
    """Of two micro-batches. In half of the rows, targets are missing: some, or all."""
    tokens = np.random.default_rng(0).integers(0, TINY.vocab_size, (16, 9), np.int32)
    inputs, targets = tokens[:, :-1], tokens[:, 1:].copy()
    for row in range(8):
        targets[row, row:] = -1
    return shard_batch({"inputs": inputs, "targets": targets}, mesh_of())


NUM_TARGETS = sum(range(8)) + 8 * 8


def new_state(params=None, step: int = 0, config: Config = CONFIG) -> TrainState:
    params = params or params_of(CONFIG.model, stddev=0.02)
    opt_state = make_update(config).init(partition(config, params))
    names = ("bad_steps", "skipped_steps", "rollbacks")
    rest = {name: jnp.int32(0) for name in names} | {"loss_ema": jnp.float32(0)}
    return TrainState(jnp.int32(step), params, {}, opt_state, **rest)


def copy(tree):
    return jax.tree.map(np.array, tree)


def same_bits(a, b) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(x.tobytes() == y.tobytes() for x, y in pairs)


def test_a_batch_is_learned(train_step, batch):
    state, losses = new_state(), []
    for _ in range(CONFIG.training.num_steps):
        state, metrics = train_step(state, batch)
        losses.append(float(metrics["loss"]))
    assert losses[0] == pytest.approx(np.log(TINY.vocab_size), rel=0.02)
    assert losses[-1] < 0.6 * losses[0]  # with dropout
    assert int(state.step) == CONFIG.training.num_steps


def test_the_state_is_donated(train_step, batch):
    """The memory of the old state is reused for the new one."""
    state = new_state()
    train_step(state, batch)
    leaves = jax.tree.leaves((state.params, state.opt_state))
    assert all(x.is_deleted() for x in leaves if x.size > 1)


EDGES = {
    "constant_at_once": {"schedule": "constant", "warmup_fraction": 0.0},
    "constant_late": {"schedule": "constant", "warmup_fraction": 1.0},
    "wsd_without_decay": {"schedule": "wsd", "decay_fraction": 0.0},
    "wsd_of_decay": {"schedule": "wsd", "warmup_fraction": 0.0, "decay_fraction": 1.0},
    "linear_in_a_step": {"schedule": "linear", "final_fraction": 0.0},
    "cosine_in_a_step": {"schedule": "cosine", "final_fraction": 1.0},
}


@pytest.mark.parametrize("edge", EDGES)
def test_edges_of_the_schedules(batch, edge):
    """They train, and report the rate at which they do."""
    num_steps = 1 if edge.endswith("in_a_step") else 3
    config = dataclasses.replace(
        CONFIG,
        optimizer=OptimizerConfig(learning_rate=1e-2, **EDGES[edge]),
        training=dataclasses.replace(
            CONFIG.training, num_steps=num_steps, per_device_batch_size=0
        ),
    )
    step, state = make_train_step(config, mesh_of()), new_state(config=config)
    rates = []
    for _ in range(num_steps):
        before = copy(state.params)
        state, metrics = step(state, batch)
        rates.append(float(metrics["learning_rate"]))
        assert same_bits(before, copy(state.params)) == (rates[-1] == 0)
    schedule = make_schedule(config.optimizer, num_steps)
    expected = [float(schedule(k)) for k in range(num_steps)]
    assert rates == pytest.approx(expected, rel=1e-6)  # here it is not compiled
    assert all(0 <= rate <= 1e-2 for rate in rates) and max(rates) > 0
    assert int(state.skipped_steps) == 0


def test_same_state_and_batch_give_the_same_bits(train_step, batch):
    first, second = (copy(train_step(new_state(), batch)) for _ in range(2))
    assert same_bits(first, second)


def test_dropout_is_a_function_of_the_step(train_step, batch):
    losses = [train_step(new_state(step=k), batch)[1]["loss"] for k in (0, 1, 1)]
    assert losses[0] != losses[1]
    assert losses[1] == losses[2]


def test_metrics_are_what_they_are_called(train_step, batch):
    params = copy(params_of(CONFIG.model, stddev=0.02))
    state, metrics = copy(train_step(new_state(), batch))

    def norm(tree):
        return np.sqrt(sum(np.square(x).sum() for x in jax.tree.leaves(tree)))

    update = jax.tree.map(np.subtract, state.params, params)
    assert metrics["param_norm"] == pytest.approx(norm(state.params), 1e-5)
    assert metrics["update_norm"] == pytest.approx(norm(update), 1e-4)
    for name, group in (("embedding", "embedding"), ("final_norm", "norm")):
        assert metrics[f"param_norm/{group}"] >= norm(state.params[name]) * (1 - 1e-5)
    embedding = norm(update["embedding"])
    assert metrics["update_norm/embedding"] == pytest.approx(embedding, 1e-4)
    by_group = [v for k, v in metrics.items() if k.startswith("grad_norm/")]
    assert metrics["grad_norm"] == pytest.approx(np.linalg.norm(by_group), 1e-5)
    assert metrics["tokens"] == NUM_TARGETS
    assert metrics["learning_rate"] == pytest.approx(1e-2)
    assert all(x.dtype == np.float32 for x in metrics.values())
    of_second = train_step(state, batch)[1]
    unknown = {k for k, x in of_second.items() if np.isnan(x)}
    assert unknown == {k for k in metrics if k.startswith(("param_", "update_"))}


def broken_loss() -> dict:
    """Embeddings whose logits are infinite."""
    params = params_of(CONFIG.model, stddev=0.02)
    params["embedding"]["token"] = jnp.full_like(params["embedding"]["token"], 1e38)
    params["final_norm"]["scale"] = jnp.full_like(params["final_norm"]["scale"], 1e10)
    return params


def broken_gradient() -> dict:
    """Embeddings so small, and a last norm so large, that only gradients overflow."""
    params = params_of(CONFIG.model, stddev=0.02)
    params["embedding"] = jax.tree.map(lambda x: x * 1e-22, params["embedding"])
    params["final_norm"]["scale"] = jnp.full_like(params["final_norm"]["scale"], 1e22)
    params["final_norm"]["shift"] = jnp.zeros_like(params["final_norm"]["shift"])
    return params


@pytest.mark.parametrize(
    "broken, finite_loss", [(broken_loss, 0), (broken_gradient, 1)]
)
def test_what_is_not_finite_changes_nothing_but_counters(
    train_step, batch, broken, finite_loss
):
    state = new_state(broken())
    before = copy((state.params, state.opt_state))
    for count in (1, 2):
        state, metrics = train_step(state, batch)
        assert np.isfinite(metrics["loss"]) == finite_loss
        assert not np.isfinite(metrics["grad_norm"])
        assert same_bits(copy((state.params, state.opt_state)), before)
        assert metrics["update_norm"] == 0 or count == 2  # which is not logged
        assert metrics["bad_steps"] == metrics["skipped_steps"] == count
        assert int(state.step) == count

    healed = new_state()
    state = state.replace(params=healed.params, opt_state=healed.opt_state)
    state, metrics = train_step(state, batch)
    assert metrics["bad_steps"] == 0 and metrics["skipped_steps"] == 2
    assert metrics["update_norm"] > 0
    # The skipped steps did not move the schedule.
    assert metrics["learning_rate"] == pytest.approx(1e-2)
    assert int(state.opt_state.rest[0].count) == 1


def test_spikes_are_counted(train_step, batch):
    """Of a batch that is learned, then one with other tokens, then it again."""
    other = {k: jnp.where(x < 0, x, (x * 7 + 3) % 32) for k, x in batch.items()}
    state, losses, found = new_state(), [], []
    for step in range(63):
        usual = losses[0] if losses else 0.0
        for loss in losses[1:]:
            usual = 0.99 * usual + 0.01 * loss
        state, metrics = train_step(state, other if step in (60, 61) else batch)
        assert metrics["loss_ema"] == pytest.approx(usual, rel=1e-4)
        if float(metrics["loss"]) <= 1.2 * usual or not losses:
            losses.append(float(metrics["loss"]))
        found.append(int(metrics["bad_steps"]))
    assert found == [0] * 60 + [1, 2, 0]
    assert int(state.skipped_steps) == 0 and int(state.opt_state.rest[0].count) == 63


def continuous(**training) -> Config:
    """A hypernetwork, with some training settings changed."""
    changes = {"weights": "hypernetwork", "num_layers": 3, "dropout": 0.0}
    model = dataclasses.replace(CONFIG.model, **changes)
    settings = dataclasses.replace(CONFIG.training, **training)
    return dataclasses.replace(CONFIG, model=model, training=settings)


@pytest.mark.slow
def test_the_loss_at_sampled_depths_is_the_models(batch):
    """The depth is a function of the step, and rarer where it is given less often."""
    config = continuous(depth_steps=(1, 2, 2))
    steps, params = make_train_steps(config, mesh_of()), params_of(config.model)
    expected = {n: loss_of(config.model.at_depth(n), params, batch) for n in (1, 2)}
    assert abs(expected[1] - expected[2]) > 1e-2
    depths = []
    for done in range(16):
        state = new_state(copy(params), done, config)
        n = sample_depth(config, done)
        metrics = steps[n](state, batch)[1]
        assert n == metrics["depth_steps"]
        assert float(metrics["loss"]) == pytest.approx(expected[n], rel=1e-5)
        depths.append(n)
    assert set(depths) == {1, 2} and depths.count(2) > depths.count(1)
    assert depths == [sample_depth(config, done) for done in range(16)]


def test_depths_are_sampled_from_a_part_on():
    sampled = {"depth_steps": (2, 4), "depth_steps_from": 0.25, "num_steps": 40}
    depths = [sample_depth(continuous(**sampled), done) for done in range(40)]
    assert depths[:10] == 10 * [3] and set(depths[10:]) == {2, 4}


@pytest.mark.parametrize(
    "num_devices",
    [
        pytest.param(1, marks=pytest.mark.slow),  # of one: test_gradients.py
        pytest.param(8, marks=pytest.mark.mesh),
    ],
)
def test_the_loss_is_the_models(batch, num_devices):
    """A mean over all targets: not over micro-batches, rows, or places without one."""
    training = dataclasses.replace(
        CONFIG.training, per_device_batch_size=8 // num_devices
    )
    model = dataclasses.replace(CONFIG.model, dropout=0.0)
    config = dataclasses.replace(CONFIG, model=model, training=training)
    mesh, params = mesh_of(num_devices), params_of(model)
    expected = loss_of(model, params, batch)
    assert abs(expected - np.log(TINY.vocab_size)) > 0.1
    step, state = make_train_step(config, mesh), new_state(copy(params), 0, config)
    _, metrics = step(state, shard_batch(copy(batch), mesh))
    assert float(metrics["loss"]) == pytest.approx(expected, rel=1e-5)


def loss_of(model: ModelConfig, params, batch) -> float:
    """The mean over all targets, from the model's logits on in float64."""
    with jax.disable_jit():
        logits = Transformer(model).apply({"params": params}, batch["inputs"])
    logits, targets = np.asarray(logits, np.float64), np.asarray(batch["targets"])
    log_z = np.log(np.exp(logits).sum(-1))
    picked = np.take_along_axis(logits, np.maximum(targets, 0)[..., None], -1)[..., 0]
    return float((log_z - picked)[targets != -1].mean())
