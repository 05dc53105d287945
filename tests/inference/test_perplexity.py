"""Figures of the validation split, against numpy in float64."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import OPTIONS, TINY, mesh_of, params_of
from prepared import prepare_words

from diffeq_former.config import Config, TrainingConfig
from diffeq_former.data.tokenizers import ByteTokenizer
from diffeq_former.inference.perplexity import make_evaluate
from diffeq_former.models.transformer import Transformer

L = 10
MODEL = dataclasses.replace(
    TINY, num_layers=2, vocab_size=ByteTokenizer.vocab_size, max_len=L
)
SHARED = dataclasses.replace(MODEL, weights="shared")  # quick to compile


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    dataset = prepare_words(tmp_path_factory.mktemp("data"), L)
    rows = dataset.split("validation").rows
    assert rows > 24 and rows % 3 and rows % 8, "the last batch is to be partial"
    assert -1 in dataset.rows("validation")[rows - 1], "the last row is to be short"
    return dataset


def evaluate(model, dataset, params, batch_size=8, at_once=0, **mesh):
    training = TrainingConfig(
        batch_size=batch_size, per_device_batch_size=at_once, loss_chunk=4
    )
    mesh = mesh_of(**mesh)
    config = Config(model=model, training=training)
    return make_evaluate(config, dataset, mesh)(params)


def token_losses(model, params, dataset):
    """-log p of every token but the first, from all logits, row by row."""
    rows = [row[row >= 0] for row in dataset.rows("validation")]
    inputs_BL = np.full((len(rows), L), dataset.eot, np.int32)
    for inputs_L, row in zip(inputs_BL, rows, strict=True):
        inputs_L[: len(row) - 1] = row[:-1]
    logits_BLV = jax.jit(Transformer(model).apply)({"params": params}, inputs_BL)
    losses = []
    for logits_LV, row in zip(np.asarray(logits_BLV, np.float64), rows, strict=True):
        z_L = np.log(np.exp(logits_LV).sum(axis=1))
        places = np.arange(len(row) - 1)
        losses += list(z_L[places] - logits_LV[places, row[1:]])
    return np.array(losses)


def num_bytes(dataset):
    """Byte tokens are bytes, but for the ends of texts."""
    rows = [row[1:] for row in dataset.rows("validation")]
    tokens = np.concatenate([dataset.rows("validation")[0][:1], *rows])
    return int(((tokens >= 0) & (tokens != dataset.eot)).sum())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"block": "llama", "weights": "shared", "solver": "heun"},
        {"weights": "layer_table", "solver": "lie_trotter", **OPTIONS},
        {"generate_weights": "per_step", "remat": "save_weights"},
        {"document_masking": True, "end_of_text": ByteTokenizer.eot},
    ],
    ids=str,
)
def test_figures_equal_those_of_all_logits(dataset, options):
    model = dataclasses.replace(MODEL, **options)
    params = params_of(model)
    losses = token_losses(model, params, dataset)
    figures = evaluate(model, dataset, params)
    loss, nats = losses.mean(), losses.sum()
    assert figures == {
        "loss": pytest.approx(loss, rel=1e-6),
        "perplexity": pytest.approx(math.exp(loss), rel=1e-5),
        "bits_per_byte": pytest.approx(
            nats / math.log(2) / num_bytes(dataset), rel=1e-6
        ),
        "tokens": len(losses),
    }
    assert type(figures["tokens"]) is int


BATCHES = [
    pytest.param({"batch_size": 1}, id="1"),
    pytest.param({"batch_size": 3}, id="3"),
    pytest.param({"batch_size": 8}, id="8"),
    pytest.param(
        {"batch_size": 16, "at_once": 1, "num_devices": 8},
        marks=pytest.mark.mesh,
        id="accumulated",
    ),
    pytest.param(
        {"num_devices": 8, "fsdp": 2, "sequence": 2, "tensor": 1},
        marks=pytest.mark.mesh,
        id="mesh",
    ),
]


@pytest.fixture(scope="module")
def whole(dataset):
    """Figures of the whole split in one batch."""
    return evaluate(SHARED, dataset, params_of(SHARED), batch_size=100)


@pytest.mark.parametrize("options", BATCHES)
def test_batches_change_nothing(dataset, whole, options):
    """Not their size, nor the devices that share them, nor accumulation."""
    assert evaluate(SHARED, dataset, params_of(SHARED), **options) == {
        name: pytest.approx(value, rel=1e-6) for name, value in whole.items()
    }


def test_a_model_that_knows_nothing(dataset):
    params = jax.tree.map(jnp.zeros_like, params_of(SHARED))
    figures = evaluate(SHARED, dataset, params)
    assert figures["loss"] == pytest.approx(math.log(MODEL.vocab_size), rel=1e-6)
    assert figures["perplexity"] == pytest.approx(MODEL.vocab_size, rel=1e-5)


def test_other_depths_of_a_continuous_model(dataset):
    params = params_of(MODEL)
    trained = evaluate(MODEL, dataset, params)
    assert evaluate(MODEL.at_depth(MODEL.num_layers), dataset, params) == trained
    model = MODEL.at_depth(5)
    expected = token_losses(model, params, dataset).mean()
    finer = evaluate(model, dataset, params)
    assert finer["loss"] == pytest.approx(expected, rel=1e-6)
    assert abs(finer["loss"] - trained["loss"]) > 1e-4


def test_stops_between_batches(dataset):
    config = Config(model=SHARED, training=TrainingConfig(batch_size=8))
    run, params = make_evaluate(config, dataset, mesh_of()), params_of(SHARED)
    asked = []

    def after(count):
        asked.clear()
        return lambda: asked.append(None) or len(asked) > count

    assert run(params, should_stop=after(2)) is None
    assert len(asked) == 3
    num_batches = -(-dataset.split("validation").rows // 8)
    assert run(params, should_stop=after(100)) == run(params)
    assert len(asked) == num_batches
