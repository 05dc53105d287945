"""Adapters that are saved, loaded, and merged into the weights."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mesh_of, params_of, tokens_of
from runs import TINY
from safetensors.numpy import load_file, save_file

from diffeq_former.config import FinetuneConfig, ModelConfig, Stabilisers
from diffeq_former.errors import UserError
from diffeq_former.finetuning import adapters
from diffeq_former.finetuning.merge import merge_run
from diffeq_former.models.transformer import Transformer
from diffeq_former.training import parts, run_directory

FINETUNE = FinetuneConfig(base="base")


def adapted(block: str, **changes) -> ModelConfig:
    """In steps of a half, which Hugging Face models do not have."""
    plain = {"weights": "layer_table", "solver": "lie_trotter", "horizon": 1.0}
    lora = {"lora_rank": 3, "lora_alpha": 6.0}
    return dataclasses.replace(
        TINY.model, block=block, dropout=0.0, **(plain | lora | changes)
    )


def logits_of(model: ModelConfig, params: dict):
    return jax.jit(Transformer(model).apply)({"params": params}, tokens_of(model))


@pytest.fixture(scope="module")
def tuned(write_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuned")
    return {
        block: write_run(folder / block, adapted(block), finetune=FINETUNE)
        for block in ("gpt", "llama")
    }


@pytest.fixture(scope="module")
def base(write_run, tmp_path_factory):
    """That of the tuned gpt."""
    model = adapted("gpt")
    params = params_of(model)
    weights = {
        name: {key: x for key, x in unit.items() if not key.startswith("lora")}
        for name, unit in params["weights"].items()
    }
    folder = tmp_path_factory.mktemp("base") / "run"
    return write_run(folder, model.without_adapters(), params | {"weights": weights})


@pytest.fixture(scope="module")
def saved(tuned, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter")
    run = run_directory.load(tuned["gpt"], mesh_of())
    adapters.save(folder, run.config, run.params)
    return folder


def near(found, expected):
    assert np.linalg.norm(found - expected) <= 1e-6 * np.linalg.norm(expected)


@pytest.mark.parametrize(
    "block, mesh",
    [
        ("gpt", {}),
        ("llama", {}),
        pytest.param("llama", {"num_devices": 8, "fsdp": 4}, marks=pytest.mark.mesh),
    ],
    ids=str,
)
def test_merged_runs_compute_the_same(tuned, block, mesh, tmp_path):
    config = merge_run(tuned[block], None, tmp_path / "merged", mesh_of(**mesh))
    assert config.model == adapted(block).without_adapters()
    assert config.finetune == FinetuneConfig()
    run = run_directory.load(tmp_path / "merged", mesh_of())
    assert (run.config.model, run.step) == (config.model, 0)
    expected = logits_of(adapted(block), params_of(adapted(block)))
    near(logits_of(run.config.model, run.params), expected)


def test_an_adapter_comes_back_to_its_base(base, saved, tuned, tmp_path):
    run = run_directory.load(base, mesh_of())
    model, added = adapters.load(saved, run.config.model, run.params)
    assert model == dataclasses.replace(
        adapted("gpt"), lora_targets=("qkv", "attention_out", "ff_in", "ff_out")
    )
    whole = parts.merge(added, run.params)
    jax.tree.map(np.testing.assert_array_equal, whole, params_of(adapted("gpt")))
    merge_run(base, saved, tmp_path / "one", mesh_of())
    merge_run(tuned["gpt"], None, tmp_path / "two", mesh_of())
    one, two = (run_directory.load(tmp_path / x, mesh_of()) for x in ("one", "two"))
    jax.tree.map(np.testing.assert_array_equal, one.params, two.params)


def test_arrays_are_those_of_peft(saved):
    arrays = load_file(saved / adapters.ARRAYS)
    layer = "base_model.model.transformer.h.1"
    unit = params_of(adapted("gpt"))["weights"]["attention_out"]
    a_RI = np.asarray(unit["lora_a"])[1].reshape(16, 3).T
    np.testing.assert_array_equal(arrays[f"{layer}.attn.c_proj.lora_A.weight"], a_RI)
    b_OR = np.asarray(unit["lora_b"])[1].T / 2
    np.testing.assert_array_equal(arrays[f"{layer}.attn.c_proj.lora_B.weight"], b_OR)
    assert len(arrays) == 2 * 4 * 2


def copy_of(saved, folder, settings=None, arrays=None, metadata=None):
    """The adapter with some settings or arrays changed."""
    folder.mkdir()
    text = json.loads((saved / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(text | (settings or {})))
    held = load_file(saved / adapters.ARRAYS) | (arrays or {})
    save_file(held, folder / adapters.ARRAYS, metadata)
    return folder


def test_short_names_of_modules_are_understood(base, saved, tmp_path):
    """As PEFT has them by default; without a fingerprint shapes decide."""
    short = {"target_modules": ["c_attn", "c_proj", "c_fc"]}
    run = run_directory.load(base, mesh_of())
    folder = copy_of(saved, tmp_path / "short", short)
    model, _ = adapters.load(folder, run.config.model, run.params)
    assert set(model.lora_targets) == {*("qkv", "attention_out", "ff_in", "ff_out")}


FIRST = "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight"
LAST = "base_model.model.transformer.h.2.attn.c_attn.lora_A.weight"
WRONG = {
    "targets": ({"target_modules": ["q_proj"]}, {}, "'q_proj' is not a module of the"),
    "rank": (
        {"r": 2},
        {},
        "is for another base: base_model.model.transformer.h.0.",
    ),
    "no rank": ({"r": 0}, {}, "r: expected 1 or more, got 0"),
    "kind": ({"peft_type": "IA3"}, {}, "peft_type is 'IA3', expected 'LORA'"),
    "dora": ({"use_dora": True}, {}, "use_dora is True, expected False"),
    "width": ({}, {FIRST: np.ones((3, 8), np.float32)}, "is [3, 8], expected [3, 16]"),
    "not finite": (
        {},
        {FIRST: np.full((4, 16), np.inf, np.float32)},
        "has values that are not finite",
    ),
    "depth": ({}, {LAST: np.ones((3, 16), np.float32)}, "is [3, 16], expected missing"),
}


@pytest.mark.parametrize("name", WRONG)
def test_refuses_an_adapter(base, saved, tmp_path, name):
    settings, arrays, message = WRONG[name]
    folder = copy_of(saved, tmp_path / "changed", settings, arrays)
    with pytest.raises(UserError) as refusal:
        merge_run(base, folder, tmp_path / "out", mesh_of())
    assert message in str(refusal.value) and "\n" not in str(refusal.value)
    assert not (tmp_path / "out").exists()


def test_refuses_an_adapter_for_other_weights(write_run, saved, tmp_path):
    model = adapted("gpt").without_adapters()
    other = write_run(tmp_path / "other", model, params_of(model, seed=1))
    with pytest.raises(UserError, match="the weights that it was trained on are not"):
        merge_run(other, saved, tmp_path / "out", mesh_of())


def test_refuses_what_is_no_adapter(base, tuned, saved, tmp_path):
    for workdir, adapter, message in (
        (base, None, "has no adapter to merge: name one with --adapter"),
        (base, tmp_path, "adapter_config.json is missing or damaged"),
        (tuned["gpt"], saved, "has an adapter of its own: merge that first"),
    ):
        with pytest.raises(UserError, match=message):
            merge_run(workdir, adapter, tmp_path / "out", mesh_of())
    broken = copy_of(saved, tmp_path / "broken")
    (broken / adapters.ARRAYS).write_bytes(b"no safetensors")
    with pytest.raises(UserError, match="adapter_model.safetensors is missing or dam"):
        merge_run(base, broken, tmp_path / "out", mesh_of())


@pytest.mark.parametrize(
    "changes, embeddings, message",
    [
        ({"lora_rank": 0}, False, "this run has no adapter"),
        ({}, True, "this run trained its embeddings too, which an adapter does not"),
        ({"solver": "euler"}, False, "a model of layer_table and euler has no Hugging"),
        (
            {"block": "llama", "chain_norms": True},
            False,
            "a model with chain_norms",
        ),
        ({"qk_norm": True}, False, "a model with qk_norm has no Hugging Face"),
        ({"positions": "rotary"}, False, "with positions=rotary has no Hugging Face"),
        (
            {"stabilisers": Stabilisers(norm="post")},
            False,
            "a model with Stabilisers.residual=1.0, norm='post'. has no Hugging Face",
        ),
    ],
    ids=str,
)
def test_refuses_to_save(tmp_path, changes, embeddings, message):
    model = adapted(**({"block": "gpt"} | changes))
    finetune = dataclasses.replace(FINETUNE, train_embeddings=embeddings)
    config = dataclasses.replace(TINY, model=model, finetune=finetune)
    with pytest.raises(UserError, match=message):
        adapters.save(tmp_path, config, {"weights": jnp.zeros(())})
    assert list(tmp_path.iterdir()) == []
