"""tools/import_hf.py and export_hf.py as a user runs them, and the tools after them."""

import json

import numpy as np
import pytest
from cases import mesh_of
from hf_fixtures import copied, edit
from prepared import prepare_words
from runs import ROOT

from diffeq_former.conversion.diffeq_former_hf import CODE
from diffeq_former.conversion.hf_folder import HFFolder
from diffeq_former.training import run_directory

IN, OUT = "import_hf.py", "export_hf.py"
MODEL = ROOT / "tests/conversion/fixtures/llama"


@pytest.fixture(scope="module")
def imported(tool, tmp_path_factory):
    """A hypernetwork; it cannot be told from the layers it comes from."""
    output = tmp_path_factory.mktemp("imported") / "run"
    flags = ("--hypernetwork", "--time_embed_dim=4")
    result = tool(IN, f"--model={MODEL}", f"--output={output}", *flags)
    assert (result.returncode, result.stderr) == (0, "")
    line = json.loads(result.stdout)
    assert line.pop("error") < 1e-6
    assert line == {
        "model": str(MODEL),
        "output": str(output),
        "block": "llama",
        "num_layers": 3,
        "time_embed_dim": 4,
    }
    assert [path.name for path in output.parent.iterdir()] == ["run"]
    return output


def test_an_import_writes_what_transformers_does(tool, imported):
    with np.load(MODEL / "computed.npz") as file:
        prompt, new = file["prompt"].tolist(), file["new"].tolist()
    tokenizer = run_directory.load(imported, mesh_of(1)).tokenizer
    text = tokenizer.decode(prompt)
    flags = (f"--prompt={text}", f"--max_new_tokens={len(new)}", "--temperature=0")
    result = tool("generate.py", f"--workdir={imported}", *flags)
    assert result.returncode == 0, result.stderr
    assert result.stdout == tokenizer.decode(prompt + new) + "\n"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_dtype_is_that_of_the_folder_or_given(tool, tmp_path, dtype):
    model = copied("llama", tmp_path)
    edit(model / "config.json", dtype=dtype)
    for flags in ((), ("--dtype=float32",), ("--dtype=bfloat16",)):
        output = tmp_path / f"run{len(flags)}{flags[:1]}"
        result = tool(IN, f"--model={model}", f"--output={output}", *flags)
        assert result.returncode == 0, result.stderr
        wanted = flags[0].partition("=")[2] if flags else dtype
        assert run_directory.read_config(output).model.dtype == wanted


def test_an_import_is_cut_and_goes_out_as_it_came(tool, imported, tmp_path):
    out = tmp_path / "out"
    result = tool(OUT, f"--workdir={imported}", f"--output={out}")
    assert (result.returncode, result.stderr) == (0, "")
    line = json.loads(result.stdout)
    assert (line["architecture"], line["num_layers"]) == ("LlamaForCausalLM", 3)
    assert line["difference"] < 1e-5
    before, after = HFFolder(MODEL), HFFolder(out)
    assert sorted(before.keys) == sorted(after.keys)
    for key in before.keys:
        np.testing.assert_allclose(after.read(key), before.read(key), rtol=0, atol=3e-6)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (out / name).read_bytes() == (MODEL / name).read_bytes()


@pytest.mark.slow
def test_an_import_is_evaluated_on_data_of_its_tokenizer(
    tool, refused, imported, tmp_path
):
    line = refused("evaluate.py", f"--workdir={imported}")
    assert line == "this run has no dataset: name one with --data"
    words = [" ".join(f"w{i}" for i in range(a, a + 20)) for a in range(3, 30)]
    data = prepare_words(tmp_path, 16, f"hf:{MODEL}", words)
    result = tool("evaluate.py", f"--workdir={imported}", f"--data={data.path}")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["loss"] > 0


@pytest.mark.slow
def test_fewer_dimensions_than_layers_are_said(tool, tmp_path):
    flags = ("--hypernetwork", "--time_embed_dim=1", f"--output={tmp_path / 'run'}")
    result = tool(IN, f"--model={MODEL}", *flags)
    assert result.returncode == 0
    [line] = result.stderr.splitlines()
    assert "3 layers fitted with time_embed_dim=1: relative errors of the wei" in line
    assert "norm_1" in line and "down" in line
    assert json.loads(result.stdout)["error"] > 0.1


@pytest.mark.parametrize(
    "mesh",
    [
        (),
        pytest.param(
            ("--config.mesh.data=1", "--config.mesh.fsdp=8"), marks=pytest.mark.mesh
        ),
    ],
    ids=["one-device", "fsdp"],
)
def test_a_trained_run_is_exported(tool, trained, tmp_path, mesh):
    """The paper's field, which takes a file of code along, rounded to bfloat16."""
    out = tmp_path / "out"
    flags = (f"--workdir={trained.workdir}", f"--output={out}", "--num_steps=5")
    result = tool(OUT, *flags, "--dtype=bfloat16", *mesh)
    assert result.returncode == 0, result.stderr
    assert "load it with trust_remote_code=True, which runs" in result.stderr
    line = json.loads(result.stdout)
    assert (line["architecture"], line["num_layers"]) == ("DiffEqFormerForCausalLM", 5)
    assert 1e-5 < line["difference"] < 2e-2
    assert (out / CODE.name).read_text() == CODE.read_text()
    assert "jax" not in CODE.read_text().lower().replace("not jax", "")


def test_wrong_input_is_one_line(refused, tmp_path):
    (tmp_path / "mine").mkdir()
    line = refused(IN, f"--model={MODEL}", f"--output={tmp_path / 'mine'}")
    assert line.startswith(f"output {tmp_path / 'mine'} exists: remove it or name")
    flags = (f"--output={tmp_path / 'run'}", "--time_embed_dim=3")
    line = refused(IN, f"--model={MODEL}", *flags)
    assert line == "--time_embed_dim: requires --hypernetwork; add that flag"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("flags", [("evaluate.py",), ("generate.py", "--prompt=w1")])
def test_a_hugging_face_folder_is_not_a_run(refused, flags):
    line = refused(*flags, f"--workdir={MODEL}")
    assert line == (
        f"{MODEL} is a Hugging Face model, not a run: use tools/import_hf.py"
        f" --model={MODEL} --output=..."
    )


@pytest.mark.slow
def test_wrong_exports_are_one_line(refused, imported, trained, tmp_path):
    out = f"--output={tmp_path / 'out'}"
    line = refused(OUT, f"--workdir={tmp_path}", out)
    assert line.startswith(f"{tmp_path} is not a run")
    line = refused(OUT, f"--workdir={trained.workdir}", out, "--num_steps=0")
    assert line == "num_steps=0: expected 1 to 10000"
    line = refused(OUT, f"--workdir={trained.workdir}", out, "--dtype=float16")
    assert "--dtype=float16" in line
    line = refused(OUT, f"--workdir={imported}", f"--output={imported}")
    assert line.startswith(f"output {imported} exists: remove it or name another")
    assert list(tmp_path.iterdir()) == []
