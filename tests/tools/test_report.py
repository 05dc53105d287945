"""tools/report.py as a user runs it, and its page in a browser where there is one."""

import json
import re

import pytest
from browser import assert_readable, needs_browser, on_a_phone
from prepared import prepare_words
from runs import ROOT

from diffeq_former.analysis import run_report
from diffeq_former.json_io import read_object

TOOL = "report.py"
OF_TRAINING = ["Provenance", "Training", "Samples"]
SECTIONS = ["Settings", *OF_TRAINING, "Depth"]
SECTIONS += ["Spectra of the weights", "Sensitivity", "Costs"]


@pytest.fixture(scope="module", autouse=True)
def few_depths():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_report, "DEPTHS", (0.5, 1.0))
        yield


@pytest.fixture(scope="module")
def report(tool, trained, tmp_path_factory):
    output = tmp_path_factory.mktemp("report") / "report.html"
    result = tool(
        TOOL, f"--workdir={trained.workdir}", f"--output={output}", "--text=the <cat>"
    )
    assert result.returncode == 0, result.stderr
    [line] = map(json.loads, result.stdout.splitlines())
    assert line == {"output": str(output), "sections": SECTIONS}
    return output


def test_all_is_on_one_page(report, trained):
    page = report.read_text()
    assert re.findall("<h2>(.*?)</h2>", page) == SECTIONS
    assert f"<h1>run, step {trained.run.step}</h1>" in page
    assert page.count("<img ") == 7  # curves, depth, four of spectra, tokens
    sources = re.findall('(?:src|href)="([^"]*)"', page)
    assert all(source.startswith("data:") for source in sources)
    assert "optimizer.learning_rate</td><td>0.05" in page
    assert "<th>step</th><td>0</td>" in page and "<th>data_sha256</th><td>" in page
    depth = page.partition("<h2>Depth</h2>")[2].partition("<h2>")[0]
    assert re.findall(r"<tr><td>(\d+)<", depth) == ["1", "2"]
    assert "the &lt;cat&gt;" in page and "the <cat>" not in page
    assert (trained.workdir / "samples.txt").read_text().split()[-1] in page


def sections_of(tool, folder, workdir, *flags):
    """The titles on the page of a run, and what the tool says on stderr."""
    output = folder / f"{workdir.name}.html"
    result = tool(TOOL, f"--workdir={workdir}", f"--output={output}", *flags)
    assert result.returncode == 0, result.stderr
    titles = re.findall("<h2>(.*?)</h2>", output.read_text())
    assert json.loads(result.stdout)["sections"] == titles
    return titles, result.stderr


def test_a_discretised_run_has_no_training(tool, trained, tmp_path):
    """It knows its dataset, on which it is evaluated."""
    run = tmp_path / "discrete"
    flags = (f"--workdir={trained.workdir}", f"--output={run}", "--num_steps=2")
    assert tool("convert.py", "discretise", *flags).returncode == 0
    titles, _ = sections_of(tool, tmp_path, run, "--text=the")
    assert titles == [x for x in SECTIONS if x not in OF_TRAINING]


def test_an_imported_run_is_evaluated_on_data_that_is_given(tool, tmp_path):
    model, run = ROOT / "tests/conversion/fixtures/llama", tmp_path / "imported"
    result = tool("import_hf.py", f"--model={model}", f"--output={run}")
    assert result.returncode == 0, result.stderr
    titles, messages = sections_of(tool, tmp_path, run)
    assert titles == ["Settings", *SECTIONS[-3:]]
    assert "no Depth without a dataset; add --data=DIR" in messages
    max_len = read_object(run / "config.json")["model"]["max_len"]
    data = prepare_words(tmp_path, min(16, max_len), f"hf:{model}")
    (tmp_path / "imported.html").unlink()
    titles, messages = sections_of(tool, tmp_path, run, f"--data={data.path}")
    assert titles == ["Settings", *SECTIONS[-4:]] and "no Depth" not in messages


@needs_browser
def test_a_browser_shows_it_on_a_phone(report, trained, tmp_path):
    seen = on_a_phone(report, tmp_path)
    assert_readable(seen, num_pictures=5)
    lines = seen.text.splitlines()
    assert [line for line in lines if line in SECTIONS] == SECTIONS
    assert "optimizer.learning_rate\t0.05\t0.0006" in lines
    assert "the <cat>" in lines and "after step 3:" in lines


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        (
            "--output=report.txt",
            "output report.txt: expected a name that ends with .html",
        ),
        ("--workdir=none", "none is not a run: it has no config.json"),
        ("--text=", "sentence 1 is empty"),
    ],
)
def test_refuses(tool, trained, tmp_path, monkeypatch, flag, words):
    for name in ("depth_curve", "weights"):  # before the text is read
        monkeypatch.setattr(run_report, name, lambda *_: "")
    given = (f"--workdir={trained.workdir}", f"--output={tmp_path / 'report.html'}")
    result = tool(TOOL, *given, flag)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1].startswith(f"error: {words}")
    assert not (tmp_path / "report.html").exists()
