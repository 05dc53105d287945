"""tools/analyze.py as a user runs it."""

import base64
import json
import re
import shutil

import pytest

TOOL = "analyze.py"


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
def test_writes_a_folder_and_prints_figures(tool, trained, tmp_path, mesh):
    """Of a file of sentences."""
    (tmp_path / "lines.txt").write_text("the cat\non a mat\n")
    output = tmp_path / "entropy"
    flags = (f"--file={tmp_path / 'lines.txt'}", f"--output={output}")
    result = tool(TOOL, "entropy", f"--workdir={trained.workdir}", *flags, *mesh)
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["time"] for line in lines] == [0, 0.5, 1]
    assert all(line["sentences"] == 2 and 0 < line["entropy"] < 6 for line in lines)
    names = {"entropy.json", "entropy.png", "index.html"}
    assert {p.name for p in output.iterdir()} == names
    page = (output / "index.html").read_text()
    assert "<h1>entropy of run</h1>" in page and page.count("<tr>") == 1 + len(lines)
    [picture] = re.findall('src="data:image/png;base64,([^"]*)"', page)
    assert base64.b64decode(picture) == (output / "entropy.png").read_bytes()
    assert re.findall('<a href="([^"]*)"', page) == ["entropy.json"]


@pytest.mark.parametrize(
    "words, answer",
    [
        (("spektra",), "expected one of spectra, lyapunov, .*; got 'spektra'"),
        (
            ("ablation", "--config=a"),
            ".* got 'ablation'; .* tools/experiment.py ablation",
        ),
        (("spectra", "--text=a"), "--text, --file: spectra does not use it"),
        (("entropy", "--text=a", "--num_seeds=2"), "--num_seeds: entropy does not"),
        (("spectra", "--head=2"), "--head=2: run has heads 0 to 1"),
        (("induction", "--head=1"), "--head: induction does not use it"),
        (("entropy",), "entropy needs either --text or --file"),
        (("entropy", "--text=a", "--file=b"), "entropy needs either --text or --file"),
        (("entropy", "--text="), "sentence 1 is empty"),
        (("entropy", "--text=much longer than the model"), "sentence 1 has 26 tokens"),
        (("antecedent", "--text=a"), "--text: antecedent does not use it"),
        (("antecedent", "--file=none"), "--file=none: cannot be read as text"),
        (("antecedent",), "sentence 1 has .* room for only 15 .* by --file"),
        (("spectra", "--horizon=2"), "--horizon: spectra does not use it"),
        (("clustering", "--polynomials=t^2"), r"--polynomials=t\^2: expected distinct"),
        (("clustering", "--step_size=0.3"), r"--step_size=0.3: .* use at most 0.198"),
        (("clustering", "--horizon=0"), "flag --horizon=0: 0.0 is not a number in"),
        (("clustering", "--normalisation=cube"), "flag --normalisation=cube: value"),
        (("spectra", "--beside=none"), "none is not a run: it has no config.json"),
    ],
    ids=" ".join,
)
def test_refuses(refused, trained, tmp_path, words, answer):
    output = tmp_path / "out"
    flags = (f"--workdir={trained.workdir}", f"--output={output}")
    assert re.match(answer, refused(TOOL, *words, *flags))
    assert not any(tmp_path.iterdir())


def test_a_run_without_weights_is_refused(refused, trained, tmp_path):
    shutil.copytree(
        trained.workdir, tmp_path / "run", ignore=lambda *_: ["checkpoints"]
    )
    flags = (f"--workdir={tmp_path / 'run'}", f"--output={tmp_path / 'out'}")
    line = refused(TOOL, "entropy", "--text=a", *flags)
    assert re.match(f"{tmp_path / 'run'}/checkpoints holds no checkpoint yet", line)
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten(refused, trained, tmp_path):
    line = refused(
        TOOL, "spectra", f"--workdir={trained.workdir}", f"--output={tmp_path}"
    )
    assert "exists: remove it or name another" in line


GRID = ("--residuals=1", "--steps=1", "--depths=2", "--num_seeds=1")


@pytest.mark.slow
def test_a_study_resumes_after_the_runs_that_are_done(tool, trained, refused, tmp_path):
    """Of the first two, one diverges."""
    output = tmp_path / "study"
    flags = (
        f"--data={trained.dataset.path}",
        f"--output={output}",
        "--training_steps=12",
    )
    few = (*flags, *GRID, "--norms=none", "--learning_rates=0.01,10000")
    more = (*flags, *GRID, "--norms=pre,none", "--learning_rates=0.01")
    result = tool(TOOL, "stabilisers", *few)
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    assert result.stderr.count("diverged at step") == 1
    first = {path: path.read_bytes() for path in (output / "runs").iterdir()}
    assert len(first) == 2
    assert "report exists: remove it" in refused(TOOL, "stabilisers", *few)
    shutil.rmtree(output / "report")
    result = tool(TOOL, "stabilisers", *more)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("already done") == 1
    assert {path: path.read_bytes() for path in first} == first
    assert len(list((output / "runs").iterdir())) == 3
    [line] = [json.loads(line) for line in result.stdout.splitlines()]
    assert line["claim"].startswith("no norm -> explosive") and line["pairs"] == 1
    names = {"index.html", "stabilisers.json", "table.md"}
    drawn = {f"{name}.png" for name in ("losses", "drift", "gradients", "exponents")}
    assert {p.name for p in (output / "report").iterdir()} == names | drawn
    numbers = json.loads((output / "report" / "stabilisers.json").read_text())
    described = {(run["norm"], run["learning_rate"]) for run in numbers["runs"]}
    assert described == {("none", 0.01), ("pre", 0.01)} and len(numbers["runs"]) == 2
    shutil.rmtree(output / "report")
    line = refused(TOOL, "stabilisers", *more, "--training_steps=13")
    assert "is a study with another num_steps: 12 -> 13; name another" in line


@pytest.mark.parametrize(
    "words, answer",
    [
        ((), "stabilisers needs --data: a prepared dataset"),
        (("--data=x", "--workdir=y"), "--workdir: stabilisers does not use it"),
        (("--data=x", "--solver=heun"), "--solver: stabilisers does not use it"),
        (("--data=x", "--norms=pre,head"), "--norms=pre,head: expected some of pre, p"),
    ],
    ids=" ".join,
)
def test_a_study_refuses(refused, tmp_path, words, answer):
    line = refused(TOOL, "stabilisers", *words, f"--output={tmp_path / 'out'}")
    assert re.match(answer, line)
    assert not any(tmp_path.iterdir())


def test_the_simulators_study_refuses(refused, tmp_path):
    words = ("simulator", "--data=x", "--norms=pre,rms", f"--output={tmp_path}")
    line = refused(TOOL, *words)
    assert line.startswith("--norms=pre,rms: expected some of none, head, pre, post")


def test_kinds_need_a_run(refused, tmp_path):
    line = refused(TOOL, "spectra", f"--output={tmp_path / 'out'}")
    assert line == "spectra needs --workdir: the folder of a run to analyse"
