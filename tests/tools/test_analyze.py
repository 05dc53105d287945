"""tools/analyze.py as a user runs it."""

import base64
import json
import re
import shutil

import pytest

TOOL = "analyze.py"


def test_writes_a_folder_and_prints_figures(tool, trained, tmp_path):
    """On a mesh of two devices, of a file of sentences."""
    (tmp_path / "lines.txt").write_text("the cat\non a mat\n")
    output = tmp_path / "entropy"
    flags = (f"--file={tmp_path / 'lines.txt'}", f"--output={output}")
    more = ("--config.mesh.data=1", "--config.mesh.fsdp=2")
    result = tool(
        TOOL, "entropy", f"--workdir={trained.workdir}", *flags, *more, num_devices=2
    )
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
        (("ablation", "--config=a"), ".* got 'ablation'; .* tools/ablation.py"),
        (("spectra", "--text=a"), "--text, --file: spectra does not look at it"),
        (("entropy", "--text=a", "--num_seeds=2"), "--num_seeds: entropy does not"),
        (("entropy",), "entropy needs either --text or --file"),
        (("entropy", "--text=a", "--file=b"), "entropy needs either --text or --file"),
        (("entropy", "--text="), "sentence 1 is empty"),
        (("entropy", "--text=much longer than the model"), "sentence 1 has 26 tokens"),
        (("spectra", "--beside=none"), "none is no run: it has no config.json"),
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
    assert "exists: remove it or name another directory" in line
