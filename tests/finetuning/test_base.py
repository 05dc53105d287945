"""What a run takes over from its base, and which wishes contradict that."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest
from cases import mesh_of, params_of, tokens_of
from prepared import prepare_words
from runs import TINY

from diffeq_former.config import (
    Config,
    DataConfig,
    FinetuneConfig,
    ModelConfig,
)
from diffeq_former.errors import UserError
from diffeq_former.finetuning.base import complete, first_state
from diffeq_former.finetuning.discretise import discretise_run
from diffeq_former.models.transformer import Transformer
from diffeq_former.training import run_directory

CONTINUOUS = dataclasses.replace(TINY.model, num_heads=4, dropout=0.0)
PLAIN = dataclasses.replace(
    CONTINUOUS, block="llama", weights="layer_table", solver="lie_trotter"
)
# With as many layers as the plain model, but a depth interval of length 1.
MUP = dataclasses.replace(PLAIN, parametrization="mup", attention_dropout=0.25)
RUNGE_KUTTA = dataclasses.replace(CONTINUOUS, solver="rk4")
LORA = ModelConfig(lora_rank=2, dtype="float32")
ALL = ModelConfig(dtype="float32")


@pytest.fixture(scope="module")
def bases(write_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bases")
    models = {"continuous": CONTINUOUS, "plain": PLAIN, "rk4": RUNGE_KUTTA}
    models["mup"] = MUP
    for name, model in models.items():
        write_run(folder / name, model)
    adapted = dataclasses.replace(PLAIN, lora_rank=2)
    tuned = FinetuneConfig(base=str(folder / "plain"))
    write_run(folder / "adapted", adapted, finetune=tuned)
    return folder


def wish(base, model: ModelConfig = LORA, num_steps: int = 0, **sections) -> Config:
    finetune = FinetuneConfig(base=str(base), num_steps=num_steps)
    return Config(model=model, finetune=finetune, **sections)


def logits_of(model: ModelConfig, params: dict):
    return jax.jit(Transformer(model).apply)({"params": params}, tokens_of(model))


@pytest.mark.parametrize("name", ["continuous", "plain"])
def test_adapters_start_as_the_base_in_layers(bases, dataset, tmp_path, name):
    base, depth = bases / name, 5
    own = run_directory.read_config(base).model
    config = complete(wish(base, LORA, depth), tmp_path / "new", dataset)
    assert (config.model.weights, config.model.num_layers) == ("layer_table", depth)
    assert config.model.step_size == own.interval / depth
    params = first_state(config, mesh_of()).params
    discretise_run(base, depth, tmp_path / "cut", mesh_of())
    cut = run_directory.load(tmp_path / "cut", mesh_of())
    assert cut.config.model == config.model.without_adapters()
    for name, unit in params["weights"].items():
        added = {key: unit.pop(key) for key in list(unit) if key.startswith("lora")}
        assert not np.any(added.get("lora_b", 0)), name
    jax.tree.map(np.testing.assert_array_equal, params, cut.params)
    found = logits_of(cut.config.model, params)
    expected = logits_of(own.at_depth(depth), params_of(own))
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * scale)


def test_zero_steps_are_as_many_as_the_base_has(bases, dataset, tmp_path):
    own, given = (
        complete(wish(bases / "continuous", LORA, n), tmp_path / "new", dataset).model
        for n in (0, CONTINUOUS.num_layers)
    )
    assert own == given and own.num_layers == CONTINUOUS.num_layers
    assert own.weights == "layer_table"


@pytest.mark.parametrize(
    "mesh",
    [
        pytest.param({}, id="one device"),
        pytest.param(
            {"num_devices": 8, "fsdp": 4, "data": 2}, marks=pytest.mark.mesh, id="fsdp"
        ),
    ],
)
@pytest.mark.parametrize("name, model", [("continuous", CONTINUOUS), ("plain", PLAIN)])
def test_full_training_starts_with_the_bases_parameters(
    bases, dataset, name, model, mesh
):
    config = complete(wish(bases / name, ALL), bases / "new", dataset)
    assert config.model == model
    found = first_state(config, mesh_of(**mesh))
    jax.tree.map(np.testing.assert_array_equal, found.params, params_of(model))
    assert int(found.step) == 0


def test_what_a_run_chooses_for_itself(bases, dataset):
    model = dataclasses.replace(LORA, dropout=0.3, remat="full", num_layers=2)
    config = complete(wish(bases / "plain", model, 2), bases / "new", dataset)
    chosen = {"dropout": 0.3, "remat": "full", "lora_rank": 2}
    assert config.model == dataclasses.replace(PLAIN, **chosen)
    assert config.finetune.base == str((bases / "plain").absolute())


def test_defaults_are_inherited_unless_they_are_given(bases, dataset):
    wanted = wish(bases / "mup", ModelConfig(parametrization="mup"))
    assert complete(wanted, bases / "new", dataset).model == MUP
    given = {"model.dtype", "model.attention_dropout"}
    model = complete(wanted, bases / "new", dataset, given).model
    assert (MUP.dtype, MUP.attention_dropout) == ("float32", 0.25)
    expected = {"dtype": "bfloat16", "attention_dropout": 0.0}
    assert model == dataclasses.replace(MUP, **expected)
    with pytest.raises(UserError, match="model.block: 'gpt' is not what the base"):
        complete(wanted, bases / "new", dataset, {"model.block"})


def test_the_parametrization_is_chosen_and_the_depth_interval_stays(bases, dataset):
    for name in ("standard", "mup"):
        model = ModelConfig(parametrization=name)
        config = complete(wish(bases / "mup", model), bases / "new", dataset)
        assert (config.model.parametrization, config.model.interval) == (name, 1.0)
        found = logits_of(config.model, first_state(config, mesh_of()).params)
        np.testing.assert_array_equal(found, logits_of(MUP, params_of(MUP)))


def test_rotary_positions_are_as_many_as_the_data_need(bases, dataset, tmp_path):
    longer = prepare_words(tmp_path, seq_len=32)
    config = complete(wish(bases / "plain"), tmp_path / "new", longer)
    assert config.model.max_len == 32


def test_a_run_that_has_begun_needs_its_base_no_more(bases, dataset, tmp_path):
    base = shutil.copytree(bases / "continuous", tmp_path / "base")
    wanted = wish(base, LORA, 3, data=DataConfig(path=str(dataset.path)))
    config = complete(wanted, tmp_path / "run", dataset)
    (tmp_path / "run").mkdir()
    run_directory.write(tmp_path / "run", config, dataset)
    shutil.rmtree(base)
    assert complete(wanted, tmp_path / "run", dataset) == config
    other = dataclasses.replace(wanted, finetune=FinetuneConfig(str(base), 4))
    with pytest.raises(UserError, match="is not a run"):
        complete(other, tmp_path / "run", dataset)


WRONG = {
    "no run": ("missing", LORA, 0, "missing is not a run: it has no config.json"),
    "a solver": ("rk4", LORA, 0, "this model's solver is rk4, whose steps need"),
    "adapters of its own": ("adapted", LORA, 0, "has adapters of its own; merge them"),
    "another block": (
        "continuous",
        dataclasses.replace(LORA, block="llama"),
        0,
        "config.model.block: 'llama' is not what the base ",
    ),
    "another width": (
        "continuous",
        dataclasses.replace(ALL, d_model=24),
        0,
        " has (16): leave it out, the base decides",
    ),
    "targets": (
        "plain",
        dataclasses.replace(LORA, lora_targets=("qkv",)),
        0,
        "config.model.lora_targets: 'qkv' is not a linear layer of the llama block",
    ),
    "generated per step": (
        "continuous",
        dataclasses.replace(LORA, generate_weights="per_step"),
        4,
        "a layer_table stores its weights, so there is nothing to generate per_step",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_refuses(bases, dataset, tmp_path, name):
    base, model, num_steps, message = WRONG[name]
    with pytest.raises(UserError) as refusal:
        complete(wish(bases / base, model, num_steps), tmp_path / "new", dataset)
    assert message in str(refusal.value) and "\n" not in str(refusal.value)
    assert not (tmp_path / "new").exists()


def test_refuses_other_tokens(bases, tmp_path):
    for seq_len, tokenizer, words in (
        (32, "byte", "sequences of 32 tokens, longer than the 16 that the base"),
        (16, "other", "has a different tokenizer than the base"),
    ):
        folder = tmp_path / tokenizer
        folder.mkdir()
        data = prepare_words(folder, seq_len=seq_len)
        if tokenizer == "other":
            data = dataclasses.replace(data, tokenizer_fingerprint="0" * 64)
        with pytest.raises(UserError, match=words):
            complete(wish(bases / "continuous"), tmp_path / "new", data)


def test_refuses_the_base_itself(bases, dataset):
    base = bases / "plain"
    with pytest.raises(UserError, match="is the base itself; use another folder"):
        complete(wish(base), base, dataset)
