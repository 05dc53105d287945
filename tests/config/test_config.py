"""Configs that are accepted, and the messages for those that are refused."""

import dataclasses
import math
import typing

import pytest

from diffeq_former.config import (
    Config,
    default_config,
    resolve,
    to_config_dict,
)
from diffeq_former.config.dataclass_config import differences
from diffeq_former.config.ranges import Count
from diffeq_former.errors import UserError


def with_changes(changes):
    """The defaults as plain nested dicts, changed where `section.field` says."""
    values = default_config().to_dict()
    for name, value in changes.items():
        *sections, field = name.split(".")
        target = values
        for section in sections:
            target = target[section]
        target[field] = value
    return values


REFUSALS = [
    # Keys and types.
    ({"sed": 1}, "config.sed: no such key; the nearest is config.seed"),
    ({"model.num_layer": 1}, "the nearest is config.model.num_layers"),
    ({"optimizer.lr": 1.0}, "config.optimizer.lr: no such key; the nearest is"),
    ({"model": 3}, "config.model: expected ModelConfig, got 3 (int)"),
    ({"model.d_model": "768"}, "config.model.d_model: expected int, got '768' (str)"),
    ({"model.d_model": 768.0}, "config.model.d_model: expected int, got 768.0"),
    ({"model.num_layers": True}, "expected int, got True (bool)"),
    ({"model.dropout": None}, "config.model.dropout: expected float, got None"),
    ({"model.dropout": False}, "config.model.dropout: expected float, got False"),
    # Members.
    ({"model.block": "gtp"}, "config.model.block: expected one of gpt, llama, got"),
    ({"model.weights": "table"}, "one of hypernetwork, layer_table, shared, got"),
    ({"model.solver": "rk5"}, "config.model.solver: expected one of euler, lie_tro"),
    ({"model.remat": "all"}, "config.model.remat: expected one of none, full, dots"),
    ({"model.time_mlp": "one"}, "config.model.time_mlp: expected one of per_weight"),
    ({"model.initialization": "zero"}, "config.model.initialization: expected one of"),
    ({"model.generate_weights": "once"}, "expected one of tabulated, per_step, got"),
    ({"model.dtype": "float16"}, "config.model.dtype: expected one of bfloat16, flo"),
    ({"optimizer.schedule": "cos"}, "one of constant, linear, cosine, wsd, got 'cos'"),
    ({"optimizer.decay_mask": "none"}, "one of matrices, embeddings, all, got 'none'"),
    # Ranges.
    ({"model.dropout": 1.0}, "config.model.dropout: expected below 1, got 1.0"),
    ({"model.d_ff": -1}, "config.model.d_ff: expected 0 or more, got -1"),
    ({"optimizer.learning_rate": 0.0}, "optimizer.learning_rate: expected above 0"),
    ({"optimizer.warmup_fraction": 1.5}, "warmup_fraction: expected at most 1, got"),
    ({"optimizer.b2": 1.0}, "config.optimizer.b2: expected below 1, got 1.0"),
    ({"optimizer.clip_norm": -1.0}, "config.optimizer.clip_norm: expected 0 or more"),
    ({"training.num_steps": 0}, "config.training.num_steps: expected 1 or more, got 0"),
    ({"training.rollbacks": -1}, "config.training.rollbacks: expected 0 or more, got"),
    ({"analysis_every": -1}, "config.analysis_every: expected 0 or more"),
    ({"training.transport_cost": -1.0}, "training.transport_cost: expected 0 or more"),
    ({"training.smoothness": -0.1}, "config.training.smoothness: expected 0 or more"),
    (
        {"training.smoothness": 0.1, "model.generate_weights": "per_step"},
        "config.training.smoothness: 0.1 penalises changes within the weight table,",
    ),
    (
        {
            "training.smoothness": 0.1,
            "model.lora_rank": 2,
            "model.weights": "layer_table",
            "model.solver": "lie_trotter",
            "finetune.base": "runs/small",
        },
        "config.training.smoothness: 0.1 would change the kernels, which are frozen",
    ),
    (
        {"training.spike_factor": 0.5},
        "spike_factor: expected 0 (no spike detection), or above 1, got 0.5",
    ),
    ({"data.timeout": 0.0}, "config.data.timeout: expected above 0, got 0.0"),
    ({"profile.num_steps": -1}, "profile.num_steps: expected 0 or more"),
    (
        {"profile.num_steps": 2, "profile.start_step": 0},
        "config.profile.start_step: expected 1 to 19999, so that 2 steps end by",
    ),
    (
        {"profile.num_steps": 2, "profile.start_step": 20000},
        "steps end by training.num_steps (20000), got 20000",
    ),
    ({"model.attention_implementation": "flash"}, "one of auto, xla, blockwise"),
    # Combinations.
    ({"model.num_heads": 11}, "num_heads: expected a divisor of model.d_model (768)"),
    (
        {"model.block": "llama", "model.num_kv_heads": 5},
        "num_kv_heads: expected a divisor of model.num_heads (12), got 5",
    ),
    (
        {"model.block": "llama", "model.num_heads": 256},
        "rotary positions rotate pairs of entries, but model.rope_fraction=1 of a head"
        " of 3 is 3; choose another num_heads, head_dim or rope_fraction",
    ),
    (
        {"model.positions": "rotary", "model.rope_fraction": 0.01},
        "model.rope_fraction=0.01 of a head of 64 is 0; choose another num_heads",
    ),
    (
        {"model.rope_fraction": 0.25},
        "config.model.rope_fraction: the positions of this model are a learned table;"
        " leave it 1.0, or set positions to rotary",
    ),
    (
        {"model.positions": "rotary", "model.rope_fraction": 0.0},
        "config.model.rope_fraction: expected above 0, got 0.0",
    ),
    ({"model.num_kv_heads": 4}, "the gpt block has one fused query-key-value map"),
    (
        {"model.weights": "layer_table", "model.generate_weights": "per_step"},
        "a layer_table stores its weights, so there is nothing to generate per_step",
    ),
    ({"model.chain_norms": True}, "only the llama block can chain its norms"),
    (
        {"model.backward": "reversible", "model.generate_weights": "per_step"},
        "steps are differentiated with respect to tabulated weights; use tabulated",
    ),
    (
        {"model.backward": "reversible", "model.stabilisers.residual": 0.5},
        "reversible steps need model.stabilisers.residual=1",
    ),
    (
        {"model.backward": "binomial", "model.num_checkpoints": 12},
        "num_checkpoints: expected fewer than model.num_layers (12), got 12",
    ),
    ({"model.stabilisers.residuals": 1.0}, "is config.model.stabilisers.residual"),
    ({"model.tied_head": True}, "tied_head: with learned positions, the gpt block al"),
    ({"model.rope_scaling": "linear"}, "a learned table; leave it none, or set posit"),
    ({"model.rope_scaling": "yarn"}, "one of none, linear, llama3, got 'yarn'"),
    (
        {"model.parametrization": "mup", "model.initialization": "authors"},
        "mup needs u(t) of length 1, which model.initialization=authors",
    ),
    ({"model.rope_factor": 0.5}, "config.model.rope_factor: expected 1 or more, got"),
    ({"model.rope_original_len": 0}, "rope_original_len: expected 1 or more, got 0"),
    (
        {"model.rope_high_turns": 1.0},
        "rope_high_turns: expected above model.rope_low_turns (1.0), got 1.0",
    ),
    (
        {"model.remat": "save_weights"},
        "save_weights saves weights that a step generates; set model.generate_weights",
    ),
    (
        {"optimizer.nu_dtype": "bfloat16", "optimizer.b2": 0.999},
        "nu_dtype: expected float32 with b2 above 0.99 (in bfloat16 a decay of 1 - b2",
    ),
    (
        {"training.depth_steps": (6, 0)},
        "config.training.depth_steps: expected 1 or more, got 0",
    ),
    (
        {"training.depth_steps": "6,8"},
        "config.training.depth_steps: expected a tuple of int, got '6,8' (str)",
    ),
    ({"finetune.num_steps": -1}, "num_steps: expected 0 or"),
    (
        {"finetune.num_steps": 9},
        "9 applies only to fine-tuning; set config.finetune",
    ),
    ({"model.lora_rank": 8}, "config.model.lora_rank: 8 applies only to fine-tuning"),
    (
        {"finetune.base": "runs/x", "finetune.train_embeddings": True},
        "config.finetune.train_embeddings: without adapters all parameters are",
    ),
    (
        {"training.depth_steps": (2, 3), "training.depth_steps_from": 1.5},
        "training.depth_steps_from: expected at most 1, got 1.5",
    ),
    (
        {"training.depth_steps_from": 0.5},
        "depth_steps_from: expected 0 without training.depth_steps, got 0.5",
    ),
    (
        {"model.time_segments": 5},
        "model.time_segments: expected 0 (see `segments`) or model.num_layers (12)",
    ),
    (
        {"model.time_mlp": "table", "model.solver": "heun"},
        "model.time_mlp: a table has coefficients at the layers, but heun has several",
    ),
    (
        {"model.time_mlp": "ode"},
        "model.time_scale: an ode with this rate takes too many steps, got 1000; use",
    ),
    (
        {"model.depth_noise": 0.1, "model.backward": "reversible"},
        "model.depth_noise: the two states of reversible steps would get different",
    ),
    (
        {"training.per_device_batch_size": -1},
        "per_device_batch_size: expected 0 or more, got -1",
    ),
]


@pytest.mark.parametrize("changes, message", REFUSALS, ids=lambda x: str(x)[:50])
def test_refuses(changes, message):
    with pytest.raises(UserError) as refusal:
        resolve(with_changes(changes))
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def numbers(settings=Config, within=""):
    """The names of all numeric fields, and their types with bounds."""
    for name, kind in typing.get_type_hints(settings, include_extras=True).items():
        if dataclasses.is_dataclass(kind):
            yield from numbers(kind, f"{within}{name}.")
        elif typing.get_origin(kind) is not typing.Literal and kind not in (str, bool):
            yield within + name, kind


NUMBERS = dict(numbers())
FLOATS = [name for name, kind in NUMBERS.items() if kind.__origin__ is float]
COUNTS = [name for name, kind in NUMBERS.items() if kind == Count]


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_has_bounds(name):
    kind = NUMBERS[name]
    if kind.__origin__ is tuple:
        kind = kind.__args__[0]
    assert kind is str or typing.get_args(kind)[1:]  # bounds, or members of a Literal


@pytest.mark.parametrize("name", FLOATS)
def test_every_float_is_finite(name):
    for value in (math.inf, -math.inf, math.nan, 1e39):
        with pytest.raises(UserError, match=f"^config.{name}: expected a finite"):
            resolve(with_changes({name: value}))


@pytest.mark.parametrize("name", COUNTS)
def test_every_count_is_positive_and_fits_into_32_bits(name):
    for value, expected in ((0, "1 or more"), (2**31, "below 2147483648")):
        with pytest.raises(UserError, match=f"^config.{name}: expected {expected}, "):
            resolve(with_changes({name: value}))


def test_what_float32_rounds_to_a_bound_is_out_of_range():
    for name, value in (("norm_eps", 1e-50), ("dropout", 1 - 1e-9)):
        with pytest.raises(UserError, match=f"^config.model.{name}: expected "):
            resolve(with_changes({f"model.{name}": value}))


def test_default_config_is_locked():
    with pytest.raises(AttributeError):
        default_config().model.num_layer = 3
    with pytest.raises(AttributeError):
        default_config().modle = 3


def test_round_trip():
    changed = resolve(with_changes({"seed": 3, "model.block": "llama"}))
    assert changed != Config()
    assert resolve(to_config_dict(changed)) == changed
    assert resolve(default_config()) == Config()


def test_whole_numbers_are_taken_for_floats():
    rate = resolve(with_changes({"optimizer.learning_rate": 1})).optimizer.learning_rate
    assert (rate, type(rate)) == (1.0, float)


def test_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().model.d_model = 3


def test_differences_names_each_changed_field_once():
    changes = {
        "seed": 7,
        "model.solver": "lie_trotter",
        "model.stabilisers.norm": "post",
        "optimizer.b2": 0.9,
    }
    assert differences(Config(), resolve(with_changes(changes))) == [
        "seed: 0 -> 7",
        "model.solver: 'euler' -> 'lie_trotter'",
        "model.stabilisers.norm: 'pre' -> 'post'",
        "optimizer.b2: 0.95 -> 0.9",
    ]
    assert differences(Config(), Config()) == []
