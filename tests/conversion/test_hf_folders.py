"""Folders that transformers wrote (fixtures/): in, and out again, without it."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from cases import in_two_lots, mesh_of
from flax.traverse_util import flatten_dict
from safetensors.numpy import load_file, save_file

from diffeq_former.config import MeshConfig
from diffeq_former.conversion import hf_folder
from diffeq_former.conversion.export_run import export_run
from diffeq_former.conversion.hf_folder import HFFolder
from diffeq_former.conversion.import_run import import_run, model_of, params_of
from diffeq_former.errors import UserError
from diffeq_former.generation.generate import Generator
from diffeq_former.models.transformer import Transformer
from diffeq_former.training import run_directory

FIXTURES = Path(__file__).parent / "fixtures"
NAMES = ("gpt2", "llama", "llama3", "sharded")
QUICK = ("gpt2", "sharded")
EOT = 0


@pytest.fixture(scope="module", params=in_two_lots(NAMES, lambda name: name in QUICK))
def imported(request, tmp_path_factory):
    """A fixture's folder, and the run that it became."""
    path = tmp_path_factory.mktemp("imported") / "run"
    import_run(FIXTURES / request.param, path, MeshConfig(), mesh_of(1))
    return FIXTURES / request.param, path


def computed(folder):
    with np.load(folder / "computed.npz") as file:
        return dict(file.items())


def exact(model):
    return dataclasses.replace(model, dtype="float32")


def logits_of(folder, tokens_BL):
    folder = HFFolder(folder)
    model = exact(model_of(folder))
    apply = jax.jit(Transformer(model).apply)
    return np.asarray(apply({"params": params_of(folder, model)}, tokens_BL))


def copied(name, folder):
    return Path(shutil.copytree(FIXTURES / name, folder / name))


def edit(path, **changes):
    """Changes entries of a JSON file; None removes one."""
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(name):
    there = computed(FIXTURES / name)
    logits = logits_of(FIXTURES / name, there["tokens"])
    np.testing.assert_allclose(logits, there["logits"], rtol=0, atol=2e-5)


def test_a_run_writes_what_transformers_does(imported):
    folder, path = imported
    there, run = computed(folder), run_directory.load(path, mesh_of(1))
    model = exact(run.config.model)
    [new] = Generator(model, mesh_of(1)).generate(
        run.params,
        [there["prompt"].tolist()],
        max_new_tokens=len(there["new"]),
        temperature=0.0,
        eot=EOT,
    )
    expected = there["new"].tolist()
    assert new == (expected[: expected.index(EOT)] if EOT in expected else expected)


def test_what_goes_out_is_what_came_in(imported, tmp_path):
    """Every tensor, bit for bit; every file; every setting that we read."""
    folder, path = imported
    before = HFFolder(folder)
    dtype = before.config["dtype"]
    done = export_run(path, tmp_path / "out", mesh_of(1), dtype)
    after = HFFolder(tmp_path / "out")
    assert done.architecture.class_name == before.config["architectures"][0]
    assert done.difference <= 1e-6  # bfloat16 too: the weights were rounded already
    assert sorted(after.keys) == sorted(before.keys)
    for key in before.keys:
        np.testing.assert_array_equal(after.read(key), before.read(key), key)
    stored = load_file(tmp_path / "out" / hf_folder.WEIGHTS)
    assert {x.dtype.name for x in stored.values()} == {dtype}
    assert model_of(after) == model_of(before)
    ids = ("bos_token_id", "eos_token_id", "pad_token_id")
    assert [after.config.get(i) for i in ids] == [before.config.get(i) for i in ids]
    weights = {p.name for p in folder.iterdir() if p.name.startswith("model")}
    kept = {p.name for p in folder.iterdir()} - weights - {"computed.npz"}
    made = {p.name for p in (tmp_path / "out").iterdir()}
    assert made == kept | {hf_folder.WEIGHTS}
    for name in kept - {hf_folder.CONFIG}:
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.slow
def test_what_bfloat16_rounds_is_said(tmp_path):
    import_run(FIXTURES / "gpt2", tmp_path / "run", MeshConfig(), mesh_of(1))
    done = export_run(tmp_path / "run", tmp_path / "out", mesh_of(1), "bfloat16")
    assert 1e-4 < done.difference < 2e-2
    assert model_of(HFFolder(tmp_path / "out")).dtype == "bfloat16"


def test_tensors_in_several_files(tmp_path):
    random = np.random.default_rng(0)
    tensors = {f"t{i}": random.normal(size=(i, 5)) for i in range(1, 9)}
    tensors = {key: x.astype(np.float32) for key, x in tensors.items()}
    hf_folder.write(tmp_path, {}, tensors, "float32", shard_bytes=200)
    # 20, 40, 60, 80 | 100 | 120 | 140 | 160 bytes
    names = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert names == [f"model-{i:05}-of-00005.safetensors" for i in range(1, 6)]
    index = json.loads((tmp_path / hf_folder.INDEX).read_text())
    assert index["metadata"]["total_size"] == 720
    folder = HFFolder(tmp_path)
    assert sorted(folder.keys) == sorted(tensors)
    for key, x in tensors.items():
        np.testing.assert_array_equal(folder.read(key), x)


def test_names_of_older_files(tmp_path):
    """Of the bare model, with causal masks, the tied head again, and float16."""
    before, folder = HFFolder(FIXTURES / "gpt2"), copied("gpt2", tmp_path)
    tensors = load_file(folder / hf_folder.WEIGHTS)
    half = {
        k.removeprefix("transformer."): v.astype("float16") for k, v in tensors.items()
    }
    masks = {"h.0.attn.bias": np.ones((1, 1, 24, 24), bool)}
    head = {"lm_head.weight": half["wte.weight"]}
    save_file(half | masks | head, folder / hf_folder.WEIGHTS)
    there = HFFolder(folder)
    params = flatten_dict(params_of(there, model_of(there)))
    for path, x in flatten_dict(params_of(before, model_of(before))).items():
        np.testing.assert_array_equal(params[path], x.astype("float16"), str(path))


def test_older_rope_settings(tmp_path):
    folder = copied("llama3", tmp_path)
    rope = json.loads((folder / "config.json").read_text())["rope_parameters"]
    theta = rope.pop("rope_theta")
    edit(folder / "config.json", rope_parameters=None, rope_theta=theta)
    edit(folder / "config.json", rope_scaling=rope, torch_dtype="float16", dtype=None)
    old, new = model_of(HFFolder(folder)), model_of(HFFolder(FIXTURES / "llama3"))
    assert old == dataclasses.replace(new, dtype="bfloat16")


LINEAR = {"rope_type": "linear", "rope_theta": 1e4}


@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("gpt2", {"model_type": "mistral"}, "model_type: expected that of GPT2LMHead"),
        ("gpt2", {"model_type": None}, "model_type: expected that of GPT2LMHeadModel"),
        ("gpt2", {"architectures": ["GPT2Model"]}, "architectures: expected one of"),
        ("gpt2", {"activation_function": "relu"}, "activation_function: our model has"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "only False, got True"),
        ("gpt2", {"tie_word_embeddings": False}, "tie_word_embeddings: our model has"),
        (
            "gpt2",
            {"n_layer": None},
            "n_layer: expected a number of 1 or more, got None",
        ),
        ("gpt2", {"n_embd": "16"}, "n_embd: expected a number of 1 or more, got '16'"),
        (
            "gpt2",
            {"layer_norm_epsilon": "x"},
            "model.norm_eps: expected float, got 'x'",
        ),
        ("llama", {"hidden_act": "gelu"}, "hidden_act: our model has only 'silu' or"),
        ("llama", {"attention_bias": True}, "attention_bias: our model has only False"),
        ("llama", {"mlp_bias": True}, "mlp_bias: our model has only False, got True"),
        ("llama", {"head_dim": 8}, "head_dim: our model has only 4 or None, got 8"),
        ("llama", {"rope_parameters": LINEAR}, "rope_scaling: linear needs factor"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "yarn"}},
            "rope_scaling: our model has only none, linear, llama3, got 'yarn'",
        ),
        ("llama", {"num_key_value_heads": 3}, "num_kv_heads: expected a divisor of"),
    ],
    ids=str,
)
def test_models_that_ours_is_not(name, changes, message, tmp_path):
    folder = copied(name, tmp_path)
    edit(folder / "config.json", **changes)
    refuses(folder, tmp_path, f"{folder / 'config.json'}: ", message)


def drop(key):
    def change(folder):
        tensors = load_file(folder / hf_folder.WEIGHTS)
        del tensors[key]
        save_file(tensors, folder / hf_folder.WEIGHTS)

    return change


def put(key, array):
    def change(folder):
        tensors = load_file(folder / hf_folder.WEIGHTS)
        save_file(tensors | {key: array}, folder / hf_folder.WEIGHTS)

    return change


def remove(name):
    return lambda folder: (folder / name).unlink()


def overwrite(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def pickled(folder):
    (folder / hf_folder.WEIGHTS).rename(folder / "pytorch_model.bin")


def of_other_shards(folder):
    index = json.loads((folder / hf_folder.INDEX).read_text())
    index["weight_map"]["lm_head.weight"] = "model-00002-of-00004.safetensors"
    (folder / hf_folder.INDEX).write_text(json.dumps(index))


SHARD = "model-00003-of-00004.safetensors"


@pytest.mark.parametrize(
    "name, damage, message",
    [
        ("gpt2", remove("config.json"), "is no Hugging Face model: it has no config"),
        ("gpt2", overwrite("config.json", b"{"), "config.json is missing or damaged:"),
        ("gpt2", overwrite("config.json", b"[]"), "damaged: expected a JSON object"),
        ("gpt2", remove(hf_folder.WEIGHTS), "has neither model.safetensors nor model."),
        ("gpt2", pickled, "(pytorch_model.bin is a pickle, which is not read): save"),
        ("gpt2", overwrite(hf_folder.WEIGHTS, b"x" * 99), "safetensors is damaged: "),
        (
            "sharded",
            remove(SHARD),
            f"{SHARD} is missing, which model.safetensors.index",
        ),
        ("sharded", overwrite(hf_folder.INDEX, b"{}"), "damaged: it has no weight_map"),
        ("sharded", of_other_shards, "lm_head.weight is not in model-00002-of-00004"),
        ("gpt2", drop("transformer.h.1.ln_1.bias"), "transformer.h.1.ln_1.bias of a"),
        ("llama", drop("lm_head.weight"), "the tensor lm_head.weight of a llama is mi"),
        (
            "llama",
            put("model.layers.3.x", np.zeros(1)),
            "layers.3.x is none of a llama",
        ),
        (
            "llama",
            put("lm_head.weight", np.zeros((60, 16), np.float32)),
            "has the shape [60, 16], where config.json asks for [61, 16]",
        ),
        (
            "llama3",
            put("lm_head.weight", np.zeros((61, 16), np.float32)),
            "the tensors lm_head.weight and model.embed_tokens.weight differ",
        ),
        (
            "llama",
            put("lm_head.weight", np.zeros((61, 16), np.int8)),
            "lm_head.weight is I8; only float32, float16 and bfloat16 are read",
        ),
        (
            "llama",
            remove("tokenizer.json"),
            "has neither tokenizer.json nor tokenizer.",
        ),
        (
            "llama",
            overwrite("tokenizer.json", b"{}"),
            "tokenizer.json: not a tokenizer",
        ),
    ],
)
def test_damaged_folders(name, damage, message, tmp_path):
    folder = copied(name, tmp_path)
    damage(folder)
    refuses(folder, tmp_path, str(folder), message)


def test_another_models_tokenizer(tmp_path):
    folder = copied("llama", tmp_path)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] |= {"w59": 59, "w60": 60, "w61": 61}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    message = "is not this model's tokenizer: it has 62 tokens, the model 61"
    refuses(folder, tmp_path, str(folder / "tokenizer.json"), message)


def refuses(folder, tmp_path, beginning, message):
    with pytest.raises(UserError) as refusal:
        import_run(folder, tmp_path / "run", MeshConfig(), mesh_of(1))
    told = str(refusal.value)
    assert told.startswith(beginning) and message in told and "\n" not in told
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
