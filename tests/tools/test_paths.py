"""Paths that cannot be read or written: one line names them, and nothing is left."""

import os

import pytest
from command_lines import MAIN, ROOT

TEXTS = f"text:{ROOT}/tests/tools/*.py"
# Command lines of which the last flag is a path to write.
OUTPUTS = {
    "main": (MAIN, "--config={config}", "--workdir="),
    "spectra": ("analyze.py", "spectra", "--workdir={run}", "--output="),
    "clustering": ("analyze.py", "clustering", "--workdir={run}", "--output="),
    "stabilisers": ("analyze.py", "stabilisers", "--data={data}", "--output="),
    "discretise": (
        *("convert.py", "discretise", "--workdir={run}", "--num_steps=2"),
        "--output=",
    ),
    "ablation": (
        *("experiment.py", "ablation", "--config={config}"),
        *("--vary=model.solver=heun,rk4", "--output="),
    ),
    "export_hf": ("export_hf.py", "--workdir={run}", "--output="),
    "losses": ("plot.py", "losses", "--workdir={run}", "--output="),
    "prepare_data": (
        *("prepare_data.py", f"--source={TEXTS}", "--tokenizer=byte"),
        *("--seq_len=64", "--output="),
    ),
    "report": ("report.py", "--workdir={run}", "--output="),
    "train_tokenizer": (
        *("train_tokenizer.py", f"--source={TEXTS}", "--vocab_size=300"),
        "--output=",
    ),
}
# Command lines of which the last flag is a path to read.
INPUTS = {
    "main": (MAIN, "--workdir={new}", "--config="),
    "main_data": (MAIN, "--config={config}", "--workdir={new}", "--config.data.path="),
    "analyze": ("analyze.py", "spectra", "--output={new}", "--workdir="),
    "analyze_file": (
        *("analyze.py", "attention", "--workdir={run}", "--output={new}"),
        "--file=",
    ),
    "discretise": (
        *("convert.py", "discretise", "--num_steps=2", "--output={new}"),
        "--workdir=",
    ),
    "evaluate": ("evaluate.py", "--workdir="),
    "evaluate_data": ("evaluate.py", "--workdir={run}", "--data="),
    "export_hf": ("export_hf.py", "--output={new}", "--workdir="),
    "generate": ("generate.py", "--prompt=a", "--workdir="),
    "import_hf": ("import_hf.py", "--output={new}", "--model="),
    "losses": ("plot.py", "losses", "--output={new}.png", "--workdir="),
    "depth": ("plot.py", "depth", "--output={new}.png", "--metrics="),
    "report": ("report.py", "--output={new}.html", "--workdir="),
    "serve": ("serve.py", "--port=0", "--workdir="),
}


@pytest.fixture
def paths(trained, tmp_path):
    """Paths that no program can use, by their kind, and those of the command lines."""
    file, dangling = tmp_path / "file", tmp_path / "dangling"
    file.write_text("a")
    dangling.symlink_to(tmp_path / "no" / "where")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    bad = {
        "a_file": file,
        "in_a_file": file / "x",
        "too_long": tmp_path / ("x" * 300),
        "dangling": dangling,
        "loop": loop / "x",
        "not_utf8": tmp_path / "\udcff",
        "in_proc": "/proc/x",
        "too_long_below": tmp_path / "a" / ("x" * 300),
    }
    good = {
        "run": trained.workdir,
        "data": trained.dataset.path,
        "config": trained.workdir.parent / "config.py",
        "new": tmp_path / "new",
    }
    return bad, good


def run(refused, command, path, good):
    program, *arguments, last = command
    return refused(program, *(a.format(**good) for a in arguments), f"{last}{path}")


KINDS = (
    "a_file",
    "in_a_file",
    "too_long",
    "dangling",
    "loop",
    "not_utf8",
    "in_proc",
    "too_long_below",
)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "not_utf8"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs(refused, paths, tmp_path, name, kind):
    bad, good = paths
    before = sorted(os.listdir(tmp_path))
    line = run(refused, OUTPUTS[name], bad[kind], good)
    assert named(bad[kind]) in line
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", INPUTS)
def test_inputs(refused, paths, tmp_path, name, kind):
    if (name, kind) == ("analyze_file", "a_file"):
        pytest.skip("it can be read")
    bad, good = paths
    before = sorted(os.listdir(tmp_path))
    line = run(refused, INPUTS[name], bad[kind], good)
    assert named(bad[kind]) in line
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize(
    "folder", ["a[1]", "a*", "a?", "a\\b", "gs:", "a gs:", "\udcff"]
)
def test_names_that_checkpoints_cannot_have(refused, paths, tmp_path, folder):
    _, good = paths
    workdir = tmp_path / folder / "run"
    line = run(refused, OUTPUTS["main"], workdir, good)
    assert named(tmp_path) in line
    assert "is not valid Unicode" in line or "cannot be stored in a folder with" in line
    assert not (tmp_path / folder).exists()


def named(path) -> str:
    """The part of the path that a message has, escaped or not."""
    return str(path).partition("\udcff")[0]
