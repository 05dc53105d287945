"""Adapters add A B alpha / r to the kernels, and nothing at first."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from cases import TINY, params_of, shapes_of, tokens_of

from diffeq_former.config import ModelConfig
from diffeq_former.config.model_validation import validate_model
from diffeq_former.errors import UserError
from diffeq_former.finetuning.base import validate_adapters
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.transformer import Transformer
from diffeq_former.models.weight_sources import SOURCES

ADAPTED = ("lora_a", "lora_b")


def config_of(block: str, **changes) -> ModelConfig:
    plain = dataclasses.replace(
        TINY, block=block, weights="layer_table", solver="lie_trotter"
    )
    adapters = {"lora_rank": 2, "lora_alpha": 3.0}
    return dataclasses.replace(plain, **(adapters | changes))


def without(params: dict, names=ADAPTED) -> dict:
    weights = {
        name: {key: x for key, x in arrays.items() if key not in names}
        for name, arrays in params["weights"].items()
    }
    return params | {"weights": weights}


def with_kernels_moved(config: ModelConfig, params: dict) -> dict:
    """W + A B alpha / r written out in float64, as a model without adapters."""
    weights = {}
    for name, layer in params["weights"].items():
        layer = dict(layer)
        if "lora_a" in layer:
            a, b = (np.asarray(layer.pop(key), np.float64) for key in ADAPTED)
            r = config.lora_rank
            rows, columns = a.reshape(len(a), -1, r), b.reshape(len(b), r, -1)
            moved = (rows @ columns * config.lora_alpha / r).reshape(
                layer["kernel"].shape
            )
            layer["kernel"] = (layer["kernel"] + moved).astype(np.float32)
        weights[name] = layer
    return params | {"weights": weights}


@functools.cache
def compiled(config: ModelConfig, train: bool):
    return jax.jit(Transformer(config, train=train).apply)


def logits_of(config: ModelConfig, params: dict, train=False, key=0):
    rngs = {"dropout": jax.random.key(key)}
    apply = compiled(config, train)
    return apply({"params": params}, tokens_of(config), rngs=rngs)


@pytest.mark.parametrize("block", BLOCKS)
def test_logits_are_those_of_moved_kernels(block):
    config = config_of(block)
    params = params_of(config)
    found = logits_of(config, params)
    plain = config.without_adapters()
    expected = logits_of(plain, with_kernels_moved(config, params))
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * scale)
    base = logits_of(plain, without(params))
    assert np.abs(base - expected).max() > 0.01 * scale


def test_at_first_they_add_nothing_even_with_dropout():
    config = config_of("llama", lora_dropout=0.5)
    params = params_of(config)
    for layer in params["weights"].values():
        if "lora_b" in layer:
            layer["lora_b"] = 0 * layer["lora_b"]
    base = logits_of(config.without_adapters(), without(params))
    for train in (False, True):
        np.testing.assert_array_equal(logits_of(config, params, train), base)


def test_dropout_is_drawn_in_training_only():
    config = config_of("llama", lora_dropout=0.5)
    params = params_of(config)
    plain = logits_of(dataclasses.replace(config, lora_dropout=0.0), params)
    np.testing.assert_array_equal(logits_of(config, params), plain)
    drawn = [logits_of(config, params, True, key) for key in (0, 1)]
    assert np.abs(drawn[0] - drawn[1]).max() > 1e-3
    assert np.abs(drawn[0] - plain).max() > 1e-3


def test_how_they_start():
    """A as PEFT draws it, uniform within 1 / sqrt(inputs); B zero."""
    config = config_of("gpt", d_model=64, d_ff=100)
    source = SOURCES["layer_table"](config, BLOCKS[config.block].weight_specs(config))
    weights, _ = jax.jit(source.init_with_output)(jax.random.key(0))
    for name, inputs in (("qkv", 64), ("attention_out", 64), ("ff_out", 100)):
        a, b = (np.asarray(weights[name][key]) for key in ADAPTED)
        assert not b.any()
        bound = inputs**-0.5
        assert 0.9 * bound < np.abs(a).max() <= bound
        assert a.std() == pytest.approx(bound / 3**0.5, rel=0.1)


def test_targets_alone_have_adapters():
    config = config_of("llama", lora_targets=("query", "down"))
    layers = shapes_of(config)["weights"].items()
    assert {name for name, layer in layers if "lora_a" in layer} == {"query", "down"}
    everything = shapes_of(config_of("llama"))["weights"].items()
    adapted = {name for name, layer in everything if "lora_a" in layer}
    assert adapted == {name for name, layer in everything if "kernel" in layer}


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"lora_rank": -1}, "config.model.lora_rank: expected 0 or more"),
        ({"lora_alpha": 0.0}, "config.model.lora_alpha: expected above 0, got 0.0"),
        ({"lora_dropout": 1.0}, "config.model.lora_dropout: expected below 1, got"),
        (
            {"weights": "shared"},
            "config.model.lora_rank: adapters belong to the",
        ),
        (
            {"lora_targets": ("qkv", "gate")},
            "config.model.lora_targets: 'gate' is not a linear layer of the gpt block,"
            " which has qkv, attention_out, ff_in, ff_out",
        ),
        (
            {"lora_targets": ("norm_1",)},
            "config.model.lora_targets: 'norm_1' is not",
        ),
    ],
    ids=str,
)
def test_refuses(changes, message):
    config = config_of("gpt", **changes)
    with pytest.raises(UserError) as refusal:
        validate_model(config)
        validate_adapters(config)
    assert str(refusal.value).startswith(message) and "\n" not in str(refusal.value)
