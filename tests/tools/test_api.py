"""The public API on a trained run, and the notebook that shows it."""

import json
import re
import shlex
import subprocess
import sys

import command_lines
import jax
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from runs import ROOT

import diffeq_former
from diffeq_former.config import MeshConfig
from diffeq_former.models.grid import default_grid

HF_FOLDER = ROOT / "tests/conversion/fixtures/llama"


@pytest.fixture(scope="module")
def run(trained):
    return diffeq_former.load(trained.workdir)


def test_importing_the_package_imports_no_library():
    code = "import sys, diffeq_former; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"jax", "flax", "numpy", "absl"} & set(done.stdout.split())
    assert "load" in dir(diffeq_former)
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        diffeq_former.lod  # noqa: B018


@pytest.mark.parametrize("name", diffeq_former.__all__)
def test_public_names_exist_and_are_documented(name):
    assert getattr(diffeq_former, name).__doc__
    assert f"`{name}" in (ROOT / "docs/api.md").read_text()


def test_greedy_text_is_that_of_the_whole_forward_pass(run):
    tokenizer = run.tokenizer
    tokens = [*tokenizer.before, *tokenizer.encode("the")]
    for _ in range(4):
        [logits_LV] = run.model.apply({"params": run.params}, np.array([tokens]))
        tokens.append(int(logits_LV[-1, : tokenizer.vocab_size].argmax()))
    expected = tokenizer.decode(tokens[len(tokenizer.before) :])
    options = {"max_new_tokens": 4, "temperature": 0.0}
    assert run.generate("the", **options) == expected
    assert run.generate(["the", "the"], **options) == [expected] * 2


def test_evaluation_is_that_of_training(run, trained):
    lines = (trained.workdir / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line).get("validation/loss") for line in lines]
    [loss] = [loss for loss in losses if loss]
    assert run.evaluate()["loss"] == pytest.approx(loss, rel=1e-5)
    assert run.evaluate(batch_size=3)["loss"] == pytest.approx(loss, rel=1e-5)


def test_another_number_of_steps(run, trained):
    other = diffeq_former.load(trained.workdir, num_steps=5)
    assert other.config.model.num_layers == 5
    loss = run.evaluate(5)["loss"]
    assert other.evaluate(data=trained.dataset.path)["loss"] == loss
    assert abs(loss - run.evaluate()["loss"]) > 1e-6


def test_weights_are_those_of_the_model(run):
    table = run.model.apply({"params": run.params}, method="tabulate")
    found = run.weights()
    assert found.keys() == table.keys()
    jax.tree.map(
        lambda w, w_TS: np.testing.assert_allclose(w, w_TS[:, -1], atol=1e-6),
        found,
        table,
    )
    times = np.asarray(default_grid(run.config.model).times_TS[:, -1])
    some = run.weights([0.0, times[1]])
    for name, unit in some.items():
        for key, w_T in unit.items():
            np.testing.assert_allclose(w_T[1], found[name][key][1], atol=1e-6)
    assert np.abs(some["ff_in"]["kernel"][0] - some["ff_in"]["kernel"][1]).max() > 1e-6


@pytest.mark.parametrize("solver", [None, "diffrax:Ralston"])
def test_the_trajectory_is_the_states_of_the_model(trained, solver):
    run = diffeq_former.load(trained.workdir, num_steps=5, solver=solver)
    states_TLD = run.trajectory("the list")
    tokens = [*run.tokenizer.before, *run.tokenizer.encode("the list")]
    _, sown = run.model.apply(
        {"params": run.params}, np.array([tokens]), mutable=["intermediates"]
    )
    [after_TBLD] = sown["intermediates"]["depth"]["state"]
    assert states_TLD.shape[0] == 6
    np.testing.assert_allclose(states_TLD[1:], after_TBLD[:, 0], atol=1e-5)


def test_the_field_moves_the_state(run):
    states_TLD = run.trajectory("the list")
    h = 1 / run.config.model.num_layers
    moved_LD = h * run.field(0.0, states_TLD[:1])[0]
    np.testing.assert_allclose(states_TLD[1] - states_TLD[0], moved_LD, atol=1e-5)


def test_a_hugging_face_folder_is_loaded_as_it_is():
    run = diffeq_former.load(HF_FOLDER)
    with np.load(HF_FOLDER / "computed.npz") as file:
        tokens, expected = file["tokens"], file["logits"]
    logits = run.model.apply({"params": run.params}, tokens)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)
    assert run.step == 0 and run.name == "llama"
    with pytest.raises(diffeq_former.UserError, match="this run has no dataset"):
        run.evaluate()


def test_wrong_input_is_refused_in_one_line(run, trained, tmp_path):
    def refuses(match, function, *args, **options):
        with pytest.raises(diffeq_former.UserError, match=match):
            function(*args, **options)

    load, workdir = diffeq_former.load, trained.workdir
    heun = load(workdir, solver="heun")
    refuses(f"{tmp_path} is not a run: it has no config.json", load, tmp_path)
    refuses("has no step 2, but steps", load, workdir, step=2)
    refuses("step=3: .* is a Hugging Face model", load, HF_FOLDER, step=3)
    refuses("num_steps=0: expected 1 to 10000", load, workdir, num_steps=0)
    refuses("mesh", load, workdir, mesh=MeshConfig(data=64))
    refuses("num_steps=0: expected 1 to 10000", run.evaluate, 0)
    refuses("solver=hen: expected one of euler", load, workdir, solver="hen")
    refuses("solver=euler: it has no estimate of its error", run.generate, "a", rtol=1)
    refuses("steps cannot adapt to", heun.generate, "the cat " * 20, rtol=1.0)
    refuses("batch_size: expected 1 or more, got 0", run.evaluate, batch_size=0)
    refuses("exit_threshold=-1: expected 0 or more", run.evaluate, exit_threshold=-1.0)
    both = {"rtol": 0.1, "exit_threshold": 0.1}
    refuses("exit_threshold=0.1: expected 0, as steps adapt", heun.evaluate, **both)
    refuses(r"expected times in \[0, 1\]", run.weights, [1.5])
    refuses("sentence 1 is empty", run.trajectory, " ")
    refuses("max_new_tokens: expected 0 or more", run.generate, "a", max_new_tokens=-1)


@pytest.fixture
def documentation(trained, monkeypatch):
    """Executes code of a page, in the folder of a tiny run, with short texts."""
    matplotlib.use("agg")
    monkeypatch.chdir(trained.workdir.parent)

    def execute(code, **names):
        code = re.sub(r"new_tokens=\d+", "new_tokens=8", code)
        exec(compile(code, "documentation", "exec"), names)
        plt.close("all")
        assert isinstance(names["run"], diffeq_former.Run)
        assert names["values_TNM"].dtype == complex

    return execute


def test_the_page_runs(trained, documentation):
    page = (ROOT / "docs/api.md").read_text()
    code = "".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    code = code.replace('"runs/demo"', repr(trained.workdir.name))
    documentation(code.replace("It was the best of times", "the list"))


def test_the_notebook_runs(trained, documentation, capsys):
    """From the text to the export; what it prepares and trains is tiny."""
    small = {
        "prepare_data": (f"--source=text:{ROOT}/tests/*.py", "--seq_len=16")
        + ("--validation_fraction=0.2", "--num_workers=0"),
        "train": ("--config.model.max_len=16", "--config.model.d_model=16")
        + ("--config.training.num_steps=3", "--config.training.sample_every=9")
        + ("--config.training.depth_steps=()", "--config.optimizer.name=adamw"),
    }
    (trained.workdir.parent / "configs").symlink_to(ROOT / "configs")

    def shell(line):
        command, name, *flags = shlex.split(line)
        assert command == "diffeq-former"
        program = command_lines.MAIN if name == "train" else f"{name}.py"
        result = command_lines.run(program, *flags, *small[name])
        assert result.returncode == 0, result.stderr

    notebook = json.loads((ROOT / "docs/quickstart.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells)
    code = "\n".join("".join(cell["source"]) for cell in cells)
    code = code.replace("\\\n", " ")
    assert len(re.findall("^!", code, re.MULTILINE)) == 2
    code = re.sub(r"^!(.*)$", r"shell('\1')", code, flags=re.MULTILINE)
    documentation(code, shell=shell)
    printed = capsys.readouterr().out
    assert printed.startswith("def ") and printed.count("\ndef ") == 1
    assert "\n# quickstart-hf\n" in printed
