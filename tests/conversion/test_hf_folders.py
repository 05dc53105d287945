"""Folders that transformers wrote (fixtures/): in, and out again, without it."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import tokenizers as backend
from cases import in_two_lots, mesh_of
from flax.traverse_util import flatten_dict
from hf_fixtures import FIXTURES, copied, edit
from safetensors.numpy import load_file, save_file

from diffeq_former.config import MeshConfig, ModelConfig, Stabilisers
from diffeq_former.conversion import export_run as exporting
from diffeq_former.conversion import hf_folder, model_card
from diffeq_former.conversion.architectures import of_model
from diffeq_former.conversion.diffeq_former_hf import OWN
from diffeq_former.conversion.export_run import export_run
from diffeq_former.conversion.hf_folder import HFFolder
from diffeq_former.conversion.import_run import (
    import_run,
    load,
    model_of,
    params_of,
)
from diffeq_former.conversion.llama import QWEN3
from diffeq_former.errors import UserError
from diffeq_former.inference.generate import Generator
from diffeq_former.models.blocks import BLOCKS
from diffeq_former.models.transformer import Transformer
from diffeq_former.training import run_directory

NAMES = ("gpt2", "llama", "llama3", "sharded")
QUICK = ("sharded",)
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
        before=[EOT],
        ends=[EOT],
    )
    expected = there["new"].tolist()
    assert new == (expected[: expected.index(EOT)] if EOT in expected else expected)


def test_what_goes_out_is_what_came_in(imported, tmp_path):
    """Every tensor, bit for bit; every file; every setting that we read."""
    folder, path = imported
    before = HFFolder(folder)
    dtype = before.config["dtype"]
    done = export_run(run_directory.load(path, mesh_of()), tmp_path / "out", dtype)
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
    assert made == kept | {hf_folder.WEIGHTS, model_card.NAME}
    for name in kept - {hf_folder.CONFIG}:
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_a_folder_decides_which_tokens_end_a_text(tmp_path, file):
    folder = copied("llama", tmp_path)
    edit(folder / "generation_config.json", eos_token_id=None)
    edit(folder / file, eos_token_id=[5, 9])
    tokenizer = backend.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = backend.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    import_run(folder, tmp_path / "run", MeshConfig(), mesh_of(1))
    imported = run_directory.load(tmp_path / "run", mesh_of(1))
    for run in (imported, load(folder, mesh_of(1))):
        assert run.tokenizer.ends == (EOT, 5, 9)  # first the tokenizer's own
        assert run.tokenizer.before == [1]
    export_run(
        run_directory.load(tmp_path / "run", mesh_of()), tmp_path / "out", "float32"
    )
    for name in ("config.json", "generation_config.json"):
        content = json.loads((tmp_path / "out" / name).read_text())
        assert content["eos_token_id"] == [5, 9]


@pytest.mark.slow
def test_what_bfloat16_rounds_is_said(tmp_path):
    import_run(FIXTURES / "gpt2", tmp_path / "run", MeshConfig(), mesh_of(1))
    done = export_run(
        run_directory.load(tmp_path / "run", mesh_of()), tmp_path / "out", "bfloat16"
    )
    assert 1e-4 < done.difference < 2e-2
    assert model_of(HFFolder(tmp_path / "out")).dtype == "bfloat16"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stabilisers": Stabilisers(norm="none")}, "residual 1 and norm none has no"),
        ({"stabilisers": Stabilisers(0.5)}, "residual 0.5 and norm pre has no Hugging"),
        ({"solver": "rk4"}, "a model with model.solver rk4 has no Hugging Face equiva"),
    ],
)
def test_what_has_no_form_there(changes, words):
    with pytest.raises(UserError, match=words):
        of_model(ModelConfig(weights="layer_table", **changes))


@pytest.mark.parametrize("block", BLOCKS)
def test_options_of_the_architecture_there(block):
    """Some have a name in transformers; other options need our own class."""
    plain = ModelConfig(block=block, weights="layer_table", solver="lie_trotter")
    squared = dataclasses.replace(plain, activation="relu_squared")
    a = of_model(squared)
    assert (
        a.model_type == of_model(plain).model_type == {"gpt": "gpt2"}.get(block, block)
    )
    assert a.read_config(a.write_config(squared)).activation == "relu_squared"
    assert a.read_config(a.write_config(plain)).activation == "default"
    sizes = {"num_kv_heads": 12, "head_dim": 64, "d_ff": 4 * 768}
    for options in ({"qk_norm": True}, {"logit_softcap": 30.0}):
        model = dataclasses.replace(squared, **options)
        a = of_model(model)
        in_qwen = block == "llama" and model.qk_norm
        assert a is (QWEN3 if in_qwen else OWN)
        if a is OWN:
            expected = {"weights": "hypernetwork", "horizon": 12.0, **sizes}
            found = a.read_config(a.write_config(model))
            assert found == dataclasses.replace(model, **expected)


@pytest.mark.slow
def test_what_computes_something_else_is_not_kept(tmp_path, monkeypatch):
    """Were the length of the steps left out."""
    import_run(FIXTURES / "gpt2", tmp_path / "run", MeshConfig(), mesh_of(1))
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["model"]["horizon"] = 1.0
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(
        exporting,
        "fold_step",
        lambda c, params: (dataclasses.replace(c, horizon=0.0), params),
    )
    with pytest.raises(UserError, match="discarded: read back, its logits differ from"):
        export_run(
            run_directory.load(tmp_path / "run", mesh_of()), tmp_path / "out", "float32"
        )
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


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
